// Device memory for tests: what lies beyond a buffer is nobody's.
//
// A buffer ends where a page ends that may be accessed (but for at most 15 bytes, which are checked), so that a kernel that reads or writes behind
// it is stopped; before it lies another such page, though a short step backwards may stay in the first page, where writes are found by the same check.
#pragma once
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace emulation {

template <class T>
class Buffer {
  public:
    explicit Buffer(size_t size, T fill = T{}) : size_(size) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t bytes = (size * sizeof(T) + 15) / 16 * 16;
        inner_ = (bytes + page - 1) / page * page;
        map_ = static_cast<char*>(mmap(nullptr, inner_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (map_ == MAP_FAILED || mprotect(map_ + page, inner_, PROT_READ | PROT_WRITE) != 0) {
            throw std::runtime_error("no memory for a buffer");
        }
        first_ = map_ + page;
        std::memset(first_, MARK, inner_);
        data_ = reinterpret_cast<T*>(first_ + inner_ - bytes);
        std::fill(data_, data_ + size, fill);
    }
    explicit Buffer(const std::vector<T>& from) : Buffer(from.size()) { std::copy(from.begin(), from.end(), data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { munmap(map_, inner_ + 2 * static_cast<size_t>(sysconf(_SC_PAGESIZE))); }

    T* data() { return data_; }
    const T* data() const { return data_; }
    size_t size() const { return size_; }
    T& operator[](size_t index) { return data_[index]; }
    const T& operator[](size_t index) const { return data_[index]; }

    // Throws if something was written beside the buffer.
    void check() const {
        const auto* behind = reinterpret_cast<const char*>(data_ + size_);
        const auto unmarked = [](char byte) { return byte != MARK; };
        if (std::find_if(first_, reinterpret_cast<char*>(data_), unmarked) != reinterpret_cast<char*>(data_) ||
            std::find_if(behind, static_cast<const char*>(first_ + inner_), unmarked) != first_ + inner_) {
            throw std::runtime_error("something was written beside a buffer");
        }
    }

  private:
    static constexpr char MARK = 0x5a;
    size_t size_, inner_;
    char *map_, *first_;
    T* data_;
};

} // namespace emulation
