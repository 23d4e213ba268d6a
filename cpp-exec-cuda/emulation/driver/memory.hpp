// Memory of the device, with pages on both sides that are nobody's, and memory of the host that is pinned.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace driver {

class Memory {
  public:
    // For a context. 0: there is none left. What it holds is no number.
    uintptr_t take(size_t bytes, void* context) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t rounded = (bytes + 15) / 16 * 16, inner = (rounded + page - 1) / page * page, all = inner + 2 * page;
        void* map = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED || mprotect(static_cast<char*>(map) + page, inner, PROT_READ | PROT_WRITE) != 0) {
            return 0;
        }
        // Of much memory the beginning will do: the pages behind it are not taken then.
        std::memset(static_cast<char*>(map) + page, 0xff, inner > size_t{16} << 20 ? page : inner);
        // It ends where the guard begins.
        const uintptr_t address = reinterpret_cast<uintptr_t>(map) + page + inner - rounded;
        const std::lock_guard guard(lock_);
        blocks_[address] = {map, all, rounded, false, context};
        return address;
    }

    // False: it is none, or is to be given back.
    bool knows(uintptr_t address) {
        const std::lock_guard guard(lock_);
        const auto found = blocks_.find(address);
        return found != blocks_.end() && !found->second.leaving;
    }

    // It will be given back. False: it is none, or will be already.
    bool will_give_back(uintptr_t address) {
        const std::lock_guard guard(lock_);
        const auto found = blocks_.find(address);
        return found != blocks_.end() && !std::exchange(found->second.leaving, true);
    }

    bool give_back(uintptr_t address) {
        const std::lock_guard guard(lock_);
        const auto found = blocks_.find(address);
        if (found == blocks_.end()) {
            return false;
        }
        munmap(found->second.map, found->second.all);
        blocks_.erase(found);
        return true;
    }

    // Whether a place lies within.
    bool holds(uintptr_t address) {
        const std::lock_guard guard(lock_);
        return find(address) != nullptr;
    }

    // The context that a place is of; null: none.
    void* owner(uintptr_t address) {
        const std::lock_guard guard(lock_);
        const Block* block = find(address);
        return block == nullptr ? nullptr : block->context;
    }

  private:
    struct Block {
        void* map;
        size_t all, bytes;
        bool leaving;
        void* context;
    };
    const Block* find(uintptr_t address) const {
        auto next = blocks_.upper_bound(address);
        if (next == blocks_.begin()) {
            return nullptr;
        }
        --next;
        return address < next->first + next->second.bytes ? &next->second : nullptr;
    }

    std::map<uintptr_t, Block> blocks_;
    std::mutex lock_;
};

} // namespace driver
