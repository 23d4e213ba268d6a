// Runs every case with many seeds, then plants faults and sees whether they are found.
//
//   kernels-test [SEEDS] [FIRST] [cases]   so many seeds of each case (20), from FIRST on (1); with the last word no faults are planted
//
// Exit 1 if a case fails or a planted fault is not found.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "case.hpp"

namespace testing {

std::vector<Case>& cases() {
    static std::vector<Case> all;
    return all;
}
double worst_share = 0;

} // namespace testing

using namespace testing;
using emulation::planted;
using emulation::Planted;
using emulation::Site;

// What is wrong with a case under a seed; empty: nothing.
static std::string trouble(const Case& one, uint64_t seed) {
    try {
        one.run(seed);
        return {};
    } catch (const std::exception& error) {
        return error.what();
    }
}

// Runs all cases as they are. Gives the sites of barriers and waits that each case came to.
static bool run_cases(uint64_t first, uint64_t seeds, std::map<Site, std::set<size_t>>& sites) {
    bool good = true;
    for (size_t i = 0; i < cases().size(); i++) {
        emulation::sites.clear();
        worst_share = 0;
        std::string found;
        uint64_t seed = first;
        while (seed < first + seeds && found.empty()) {
            found = trouble(cases()[i], seed++);
        }
        if (found.empty()) {
            std::printf("%-22s %3llu seeds, greatest error %.2f of what is tolerated\n", cases()[i].name, static_cast<unsigned long long>(seeds),
                        worst_share);
        } else {
            std::printf("%-22s FAILED with seed %llu: %s\n", cases()[i].name, static_cast<unsigned long long>(seed - 1), found.c_str());
            good = false;
        }
        for (const auto& site : emulation::sites) {
            sites[site.first].insert(i);
        }
    }
    return good;
}

// Whether a planted fault is found by one of these cases within so many seeds.
static bool is_found(const std::string& name, const Planted& fault, const std::set<size_t>& by, uint64_t first, uint64_t seeds) {
    for (size_t i : by) {
        for (uint64_t seed = first; seed < first + seeds; seed++) {
            planted = fault;
            const std::string found = trouble(cases()[i], seed);
            planted = Planted{};
            if (!found.empty()) {
                std::printf("planted: %-48s found by %s: %s\n", name.c_str(), cases()[i].name, found.c_str());
                return true;
            }
        }
    }
    std::printf("planted: %-48s NOT FOUND\n", name.c_str());
    return false;
}

int main(int argc, char** argv) {
    const uint64_t seeds = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20, first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    std::map<Site, std::set<size_t>> sites;
    if (!run_cases(first, seeds, sites)) {
        return 1;
    }
    if (argc > 3) {
        return 0;
    }
    if (sites.empty()) {
        std::puts("no barrier was come to: nothing can be planted");
        return 1;
    }
    size_t found = 0, all = 0;
    const auto plant = [&](const std::string& name, const Planted& fault, const std::set<size_t>& by) {
        all++;
        found += is_found(name, fault, by, first, seeds);
    };
    // Each barrier and each wait that was come to, left out, must be missed by a case that comes to it.
    for (const auto& [site, by] : sites) {
        Planted fault;
        fault.skipped = site;
        plant("without " + site.first + ":" + std::to_string(site.second), fault, by);
    }
    std::set<size_t> prefill, decode, shuffling;
    for (size_t i = 0; i < cases().size(); i++) {
        const std::string name = cases()[i].name;
        (name.find("prefill") == 0 ? prefill : name.find("decode") == 0 ? decode : shuffling).insert(i);
    }
    const std::pair<const char*, bool Planted::*> products[] = {
        {"left fragments exchanged", &Planted::swap_left},
        {"right fragments exchanged", &Planted::swap_right},
        {"fragments of the result exchanged", &Planted::swap_result},
        {"left fragments of the next lane", &Planted::shift_lane},
        {"shuffles at half the distance", &Planted::near_lane},
    };
    for (const auto& [name, member] : products) {
        Planted fault;
        fault.*member = true;
        plant(std::string(name) + ", prefill", fault, prefill);
        plant(std::string(name) + ", decode", fault, decode);
    }
    const std::pair<const char*, bool Planted::*> loads[] = {
        {"loads of matrices transposed or not", &Planted::transpose},
        {"loads of matrices from another row", &Planted::shift_row},
    };
    for (const auto& [name, member] : loads) {
        Planted fault;
        fault.*member = true;
        plant(name, fault, prefill);
    }
    Planted fault;
    fault.near_lane = true;
    plant("shuffles at half the distance, norm and sampling", fault, shuffling);
    std::printf("%zu cases hold; %zu of %zu planted faults found\n", cases().size(), found, all);
    return found == all ? 0 : 1;
}
