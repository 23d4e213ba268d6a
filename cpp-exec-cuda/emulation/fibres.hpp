// Blocks of CUDA threads on the processor: a fibre for each thread, of which one runs at a time, until it ends or waits.
//
// A fibre waits at a barrier until all threads of the block have come to it, and at an operation of a warp until all 32 lanes have. Who runs next
// is drawn from a seed, so that orders that a GPU may take occur, and occur again. What CUDA leaves undefined is a fault: threads at different barriers,
// lanes at different operations, a thread that ends while others wait for it, an access outside of all buffers.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace emulation {

constexpr unsigned LANES = 32;

// What a kernel did that it must not do. `what()` says which thread of which block, where, and what.
struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A place in a kernel's source: file name and line.
using Site = std::pair<std::string, int>;

// Faults that are planted to see whether they are found; none unless a test says so.
struct Planted {
    Site skipped;               // a barrier, or a wait for copies, that does nothing
    bool swap_left = false;     // the left matrix of products: registers 1 and 2 exchanged
    bool swap_right = false;    // the right matrix: both registers exchanged
    bool swap_result = false;   // sums: registers 1 and 2 exchanged
    bool shift_lane = false;    // the next lane's left matrix
    bool transpose = false;     // loads of matrices transpose where they should not, and the other way round
    bool shift_row = false;     // loads of matrices: rows of the next matrix
    bool near_lane = false;     // shuffles: the distance halved
};
extern Planted planted;

// Barriers and waits that kernels have come to, and how often.
extern std::map<Site, unsigned> sites;

// The thread that runs.
struct Index {
    unsigned x = 0, y = 0, z = 0;
};
extern Index thread_index, block_index, block_size, grid_size;

// How many barriers the running thread has passed: accesses of two threads to one place are in order if these counts differ.
unsigned phase();

// Changes with each block of each launch.
uint64_t block_number();

// Ends the launch: throws a Fault out of it.
[[noreturn]] void fail(const std::string& what);

// Whether the wait at this place is left out; notes that it was come to.
bool skipped(const char* file, int line);

// Waits for all threads of the block.
void barrier(const char* file, int line);

// Waits for all lanes of the warp; the last to come calls `act` with what each lane has given, in the order of lanes.
void warp_operation(const char* name, void* own, void (*act)(void* const (&lanes)[LANES]));

// What a thread has to do before it may wait for its copies: kept for each thread by ptx.hpp.
struct PendingCopies;
PendingCopies& pending_copies();

// Runs all blocks of a grid, each with so many threads (one dimension), one block after the other in an order drawn from the seed.
// Throws a Fault.
void launch(Index grid, unsigned threads, uint64_t seed, const std::function<void()>& kernel);

} // namespace emulation
