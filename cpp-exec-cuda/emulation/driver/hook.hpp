// What other stand-ins (cuBLAS, NCCL) need of the stand-in for the driver: to put operations of their own on its streams. Link with -l:libcuda.so.1.
#pragma once

extern "C" {

// Puts an operation on a stream: `run(argument)` is called once, on the stream's thread, after everything that was put there before and before
// anything that is put there later. It may block, as a kernel does that waits for a peer, but must come to an end when its communicator is aborted.
// While the stream is being captured it becomes a node of the graph instead, and is called each time the graph runs.
void cpp_fake_enqueue(void* stream, void (*run)(void*), void* argument);

// From now on every call fails with this CUresult, as after a kernel that has gone wrong. The first one stays.
void cpp_fake_break(int result);
}
