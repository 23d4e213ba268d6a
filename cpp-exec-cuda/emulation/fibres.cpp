// How fibres take turns; fibres.hpp says what for.
#include "fibres.hpp"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#include "ptx.hpp"

namespace emulation {

Planted planted;
std::map<Site, unsigned> sites;
Index thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t STACK_BYTES = 128 * 1024;

enum class State { ready, at_barrier, in_warp, done };

struct Fibre {
    ucontext_t context; // for the start alone: a jump is quicker, since it leaves signals as they are
    jmp_buf place;
    bool started = false;
    void* stack = nullptr;
    State state = State::ready;
    const char* where = ""; // file of the barrier, or name of the operation
    int line = 0;
    unsigned phase = 0;
    PendingCopies copies;
};

struct WarpState {
    void* lanes[LANES];
    unsigned arrived = 0;
    const char* operation = "";
};

std::vector<std::unique_ptr<Fibre>> fibres;
std::vector<WarpState> warps;
std::vector<unsigned> ready;
unsigned current, alive, at_barrier;
uint64_t number;
const std::function<void()>* body;
jmp_buf scheduler;
sigjmp_buf outside;
std::string fault;

std::string file_name(const char* path) {
    const char* slash = std::strrchr(path, '/');
    return slash ? slash + 1 : path;
}

std::string place(unsigned thread) {
    return "block (" + std::to_string(block_index.x) + ", " + std::to_string(block_index.y) + ", " + std::to_string(block_index.z) + "), thread " +
           std::to_string(thread);
}

void leave() {
    if (_setjmp(fibres[current]->place) == 0) {
        _longjmp(scheduler, 1);
    }
}

// Lets the current thread run until it leaves.
void enter() {
    Fibre& fibre = *fibres[current];
    if (_setjmp(scheduler) != 0) {
        return;
    }
    if (fibre.started) {
        _longjmp(fibre.place, 1);
    }
    fibre.started = true;
    setcontext(&fibre.context);
}

void run_thread() {
    (*body)();
    Fibre& own = *fibres[current];
    own.state = State::done;
    alive--;
    const auto some = [](const auto& group) { return !group.empty(); };
    if (some(own.copies.open) || std::any_of(own.copies.groups.begin(), own.copies.groups.end(), some)) {
        fail("ends before its copies into shared memory are there: nobody has waited for them");
    }
    if (at_barrier > 0) {
        fail("ends while others wait at a barrier");
    }
    leave();
}

// All threads are there: they may go on.
void open_barrier() {
    const Fibre& own = *fibres[current];
    for (unsigned thread = 0; thread < block_size.x; thread++) {
        Fibre& other = *fibres[thread];
        if (other.state != State::at_barrier) {
            continue;
        }
        if (other.line != own.line || file_name(other.where) != file_name(own.where)) {
            fail("meets thread " + std::to_string(thread) + " at another barrier: " + file_name(own.where) + ":" + std::to_string(own.line) +
                 " and " + file_name(other.where) + ":" + std::to_string(other.line));
        }
        other.state = State::ready;
        other.phase++;
        ready.push_back(thread);
    }
    at_barrier = 0;
}

[[noreturn]] void deadlock() {
    for (unsigned thread = 0; thread < block_size.x; thread++) {
        const Fibre& fibre = *fibres[thread];
        if (fibre.state == State::in_warp) {
            throw Fault(place(thread) + " waits for ever for all lanes in " + fibre.where);
        }
    }
    throw Fault(place(0) + ": a barrier waits for ever");
}

void run_block(std::mt19937_64& chance) {
    number++;
    alive = block_size.x;
    at_barrier = 0;
    warps.assign((block_size.x + LANES - 1) / LANES, WarpState{});
    ready.resize(block_size.x);
    std::iota(ready.begin(), ready.end(), 0u);
    for (unsigned thread = 0; thread < block_size.x; thread++) {
        Fibre& fibre = *fibres[thread];
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack;
        fibre.context.uc_stack.ss_size = STACK_BYTES;
        fibre.context.uc_link = nullptr;
        fibre.state = State::ready;
        fibre.phase = 0;
        fibre.started = false;
        fibre.copies = {};
        makecontext(&fibre.context, run_thread, 0);
    }
    while (!ready.empty()) {
        std::swap(ready[chance() % ready.size()], ready.back());
        current = ready.back();
        ready.pop_back();
        thread_index = {current, 0, 0};
        enter();
        if (!fault.empty()) {
            throw Fault(fault);
        }
    }
    if (alive > 0) {
        deadlock();
    }
}

// An access to a page that is nobody's: ends the launch, on its own stack.
void outside_access(int) {
    siglongjmp(outside, 1);
}

} // namespace

unsigned phase() {
    return fibres[current]->phase;
}

uint64_t block_number() {
    return number;
}

void fail(const std::string& what) {
    fault = place(current) + " " + what;
    leave();
    std::abort(); // a fibre that has failed is not run again
}

bool skipped(const char* file, int line) {
    const Site site{file_name(file), line};
    sites[site]++;
    return site == planted.skipped;
}

void barrier(const char* file, int line) {
    if (skipped(file, line)) {
        return;
    }
    Fibre& own = *fibres[current];
    own.state = State::at_barrier;
    own.where = file;
    own.line = line;
    at_barrier++;
    if (at_barrier == alive) {
        if (alive < block_size.x) {
            fail("waits at a barrier that other threads have not come to");
        }
        open_barrier();
    }
    leave();
}

void warp_operation(const char* name, void* own, void (*act)(void* const (&lanes)[LANES])) {
    WarpState& warp = warps[current / LANES];
    if (warp.arrived > 0 && std::strcmp(warp.operation, name) != 0) {
        fail("comes to " + std::string(name) + " while other lanes are in " + warp.operation);
    }
    warp.operation = name;
    warp.lanes[current % LANES] = own;
    fibres[current]->where = name;
    if (++warp.arrived < LANES) {
        fibres[current]->state = State::in_warp;
        leave();
        return;
    }
    act(warp.lanes);
    warp.arrived = 0;
    const unsigned first = current / LANES * LANES;
    for (unsigned thread = first; thread < first + LANES; thread++) {
        if (thread != current) {
            fibres[thread]->state = State::ready;
            ready.push_back(thread);
        }
    }
}

PendingCopies& pending_copies() {
    return fibres[current]->copies;
}

void launch(Index grid, unsigned threads, uint64_t seed, const std::function<void()>& kernel) {
    while (fibres.size() < threads) {
        auto fibre = std::make_unique<Fibre>();
        fibre->stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fibre->stack == MAP_FAILED) {
            throw std::runtime_error("no memory for the stacks of fibres");
        }
        fibres.push_back(std::move(fibre));
    }
    fault.clear();
    body = &kernel;
    grid_size = grid;
    block_size = {threads, 1, 1};
    struct sigaction handler = {}, before_fault, before_bus;
    handler.sa_handler = outside_access;
    sigaction(SIGSEGV, &handler, &before_fault);
    sigaction(SIGBUS, &handler, &before_bus);
    const auto restore = [&] {
        sigaction(SIGSEGV, &before_fault, nullptr);
        sigaction(SIGBUS, &before_bus, nullptr);
    };
    if (sigsetjmp(outside, 1) != 0) {
        restore();
        throw Fault(place(current) + " reads or writes outside of its buffers");
    }
    std::mt19937_64 chance(seed);
    std::vector<unsigned> blocks(size_t{grid.x} * grid.y * grid.z);
    std::iota(blocks.begin(), blocks.end(), 0u);
    std::shuffle(blocks.begin(), blocks.end(), chance);
    try {
        for (unsigned block : blocks) {
            block_index = {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y};
            run_block(chance);
        }
    } catch (...) {
        restore();
        throw;
    }
    restore();
}

} // namespace emulation
