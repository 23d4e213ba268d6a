// What other stand-ins (cuBLAS, NCCL) and tests need of the stand-in for the driver. Link with -l:libcuda.so.1, or look the names up.
#pragma once
#include <cstdint>

extern "C" {

// Puts an operation on a stream: `run(argument)` is called once, on the stream's thread, after everything that was put there before and before
// anything that is put there later. It may block, as a kernel does that waits for a peer, but must come to an end when its communicator is aborted.
// While the stream is being captured it becomes a node of the graph instead, and is called each time the graph runs.
void cpp_fake_enqueue(void* stream, void (*run)(void*), void* argument);

// The same; `release(argument)` is called when it will not be run again. On a device that is gone it is not run.
void cpp_fake_enqueue_owned(void* stream, void (*run)(void*), void* argument, void (*release)(void*));

// From now on every call fails with this CUresult, as after a kernel that has gone wrong. The first one stays. 0: all is well again, for tests.
void cpp_fake_break(int result);

// Streams that are made from now on take their time as this seed says (streams.hpp). No kernel counts as run before.
void cpp_fake_seed(uint64_t seed);

// So many GPUs from now on (or CPP_FAKE_GPUS). Each has a context and memory of its own, and reaches no other's.
void cpp_fake_gpus(int count);

// What has broken, as `cpp_fake_break` was told or a kernel did; 0: nothing.
int cpp_fake_state();

// Says on stderr what a caller has done that it must not do.
void cpp_fake_wrong(const char* what);

// Whether an address is the device's memory, and is not given back.
bool cpp_fake_knows(const void* address);

// 1: a kernel of this name is used for the first time since the last seed, so that it is loaded now.
int cpp_fake_first(const char* kernel);

// Of the driver, for the other stand-ins.
int cuCtxGetCurrent(void** context);
int cuStreamIsCapturing(void* stream, int* status);

// Notes that something has happened that is counted: `what` is "alloc", "free", "wait" (the host waits for the device), "first" (a
// kernel is run for the first time), "lazy" (it is loaded only then), "peer" (a copy from one GPU to another), "launch" and "ran" (of kernels), "graph", "overlap" (a copy between places of the device while a kernel runs on another stream).
void cpp_fake_note(const char* what);
// How often, since the process began.
uint64_t cpp_fake_count(const char* what);

// Lets something go wrong once: the `after`th call from now on (from 0) of `what` returns this CUresult and does nothing. `what` is "launch", "copy",
// "record", "wait", "graph"; or "kernel": the `after`th kernel that runs fails, and with it every call after that.
void cpp_fake_fail(const char* what, uint64_t after, int result);
}
