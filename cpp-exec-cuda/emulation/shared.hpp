// Shared memory that knows who has accessed it: races are found whatever order the threads happened to run in.
//
// Two accesses of different threads to one element, one of them a write, need a barrier between them. Each element keeps its last write and its last
// reads with the number of barriers that their thread had passed; the same number means that no barrier was between. Atomic operations do not race
// with each other. Elements that no thread of the block has written hold nothing that can be read.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fibres.hpp"

namespace emulation {

template <class T>
class SharedArray;

// Where an element lies.
template <class T>
struct SharedAddress {
    SharedArray<T>& array;
    size_t index;
};

template <class T>
class SharedArray {
  public:
    SharedArray(const char* name, size_t size) : name_(name), elements_(size) {}

    // An element: reading and writing it are noted.
    class Element {
      public:
        Element(SharedArray& array, size_t index) : array_(array), index_(index) {}
        operator T() const { return array_.read(index_); }
        Element& operator=(T value) {
            array_.write(index_, value, Kind::plain);
            return *this;
        }
        Element& operator=(const Element& other) { return *this = static_cast<T>(other); }
        SharedAddress<T> operator&() const { return {array_, index_}; }

      private:
        SharedArray& array_;
        size_t index_;
    };

    Element operator[](size_t index) { return {*this, index}; }

    T read(size_t index) {
        Cell& cell = at(index);
        if (cell.pending) {
            fail("reads " + label(index) + " while it is being copied");
        }
        if (!cell.written) {
            fail("reads " + label(index) + ", which nobody has written");
        }
        if (cell.writer != thread_index.x && cell.write_phase == phase()) {
            conflict("reads", index, cell.writer);
        }
        note_read(cell);
        return cell.value;
    }

    // Adds, and gives what was there before.
    T add(size_t index, T more) {
        Cell& cell = at(index);
        if (!cell.written) {
            fail("adds to " + label(index) + ", which nobody has written");
        }
        const T before = cell.value;
        write(index, before + more, Kind::atomic);
        return before;
    }

    // A copy has begun: until `finish_copy` the element is neither what it was nor what it will be.
    void begin_copy(size_t index) {
        write(index, T{}, Kind::plain);
        at(index).pending = true;
    }
    void finish_copy(size_t index, T value) {
        at(index).pending = false;
        write(index, value, Kind::plain);
    }

    size_t size() const { return elements_.size(); }

  private:
    enum class Kind { plain, atomic };
    static constexpr unsigned NOBODY = ~0u, SEVERAL = ~0u - 1;

    struct Cell {
        T value{};
        uint64_t block = 0;
        bool written = false, pending = false;
        Kind kind = Kind::plain;
        unsigned writer = NOBODY, write_phase = 0;
        unsigned reader = NOBODY, read_phase = 0;
    };

    Cell& at(size_t index) {
        if (index >= elements_.size()) {
            fail("accesses " + label(index) + " of " + std::to_string(elements_.size()));
        }
        Cell& cell = elements_[index];
        if (cell.block != block_number()) {
            cell = Cell{};
            cell.block = block_number();
        }
        return cell;
    }

    void write(size_t index, T value, Kind kind) {
        Cell& cell = at(index);
        const bool both_atomic = kind == Kind::atomic && cell.kind == Kind::atomic;
        if (cell.writer != NOBODY && cell.writer != thread_index.x && cell.write_phase == phase() && !both_atomic) {
            conflict("writes", index, cell.writer);
        }
        if (cell.reader != NOBODY && cell.reader != thread_index.x && cell.read_phase == phase()) {
            conflict("writes", index, cell.reader);
        }
        cell.value = value;
        cell.written = true;
        cell.kind = kind;
        cell.writer = thread_index.x;
        cell.write_phase = phase();
    }

    static void note_read(Cell& cell) {
        if (cell.reader == NOBODY || cell.read_phase != phase()) {
            cell.reader = thread_index.x;
        } else if (cell.reader != thread_index.x) {
            cell.reader = SEVERAL;
        }
        cell.read_phase = phase();
    }

    std::string label(size_t index) const { return name_ + "[" + std::to_string(index) + "]"; }

    [[noreturn]] void conflict(const char* verb, size_t index, unsigned other) const {
        fail(std::string(verb) + " " + label(index) + " with no barrier after an access of " +
             (other == SEVERAL ? "several threads" : "thread " + std::to_string(other)));
    }

    std::string name_;
    std::vector<Cell> elements_;
};

} // namespace emulation
