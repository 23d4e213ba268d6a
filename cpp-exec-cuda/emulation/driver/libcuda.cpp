// A stand-in for the CUDA driver: host memory, and the emulated kernels by name. For tests of what calls the driver, unmodified.
//
// Everything runs at once, in the order of the calls. Memory of the device has guards on both sides. A kernel that does what it must not ends with
// CUDA_ERROR_LAUNCH_FAILED, and what it did on stderr. Machine code is taken and not looked at: tests get it from NVRTC all the same.
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <tuple>
#include <unistd.h>
#include <utility>

#include "../cuda.hpp"

#include "argmax.cu"
#include "attention_decode.cu"
#include "attention_prefill.cu"
#include "candidates.cu"
#include "copy.cu"
#include "embedding.cu"
#include "gather.cu"
#include "norm.cu"
#include "rope.cu"
#include "swiglu.cu"

namespace {

using Kernel = std::function<void(void**)>;

// A kernel that takes its arguments as the driver gets them: by their places.
template <class... Arguments, size_t... Number>
Kernel kernel_of(void (*kernel)(Arguments...), std::index_sequence<Number...>) {
    return [kernel](void** given) { kernel(*static_cast<std::remove_const_t<Arguments>*>(given[Number])...); };
}
template <class... Arguments>
Kernel kernel_of(void (*kernel)(Arguments...)) {
    return kernel_of(kernel, std::index_sequence_for<Arguments...>{});
}

#define KERNEL(name) {#name, kernel_of(name)}
const std::map<std::string, Kernel> kernels = {
    KERNEL(add_residual),         KERNEL(add_rms_norm),         KERNEL(argmax_rows),         KERNEL(attention_decode_128),
    KERNEL(attention_decode_32),  KERNEL(attention_decode_64),  KERNEL(attention_decode_96), KERNEL(attention_merge),
    KERNEL(attention_prefill_128), KERNEL(attention_prefill_32), KERNEL(attention_prefill_64), KERNEL(attention_prefill_96),
    KERNEL(copy_blocks),          KERNEL(embed_tokens),         KERNEL(gather_rows),         KERNEL(rotate_and_store),
    KERNEL(swiglu),               KERNEL(top_candidates),
};

// Memory by its address: the mapping that it lies in.
std::map<uintptr_t, std::pair<void*, size_t>> memory;
std::mutex lock; // the emulation runs one kernel at a time
uint64_t launches = 0;

constexpr int SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, LAUNCH_FAILED = 719, INVALID_DEVICE = 101;
thread_local void* current_context = nullptr;

size_t page() {
    return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

} // namespace

extern "C" {
using Result = int;
using Address = unsigned long long;

Result cuInit(unsigned) { return SUCCESS; }
Result cuDriverGetVersion(int* version) {
    *version = 13000;
    return SUCCESS;
}
// NVRTC 13 asks for tables of functions that are not documented, and does without where there are none; without this function it crashes.
Result cuGetExportTable(const void** table, const void*) {
    *table = nullptr;
    return NOT_FOUND;
}
Result cuDeviceGetCount(int* count) {
    *count = 1;
    return SUCCESS;
}
Result cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_DEVICE;
}
Result cuDeviceGetAttribute(int* value, int attribute, int) {
    // Compute capability 9.0, memory in the order of streams; of all else there is one.
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1;
    return SUCCESS;
}
Result cuDevicePrimaryCtxRetain(void** context, int) {
    *context = reinterpret_cast<void*>(1);
    return SUCCESS;
}
Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
Result cuCtxGetCurrent(void** context) {
    *context = current_context;
    return SUCCESS;
}
Result cuCtxSetCurrent(void* context) {
    current_context = context;
    return SUCCESS;
}
Result cuCtxSynchronize() { return SUCCESS; }
Result cuStreamCreate(void** stream, unsigned) {
    *stream = reinterpret_cast<void*>(16);
    return SUCCESS;
}
Result cuStreamDestroy_v2(void*) { return SUCCESS; }
Result cuStreamSynchronize(void*) { return SUCCESS; }

Result cuMemAllocAsync(Address* address, size_t bytes, void*) {
    const std::lock_guard guard(lock);
    const size_t rounded = (bytes + 15) / 16 * 16, inner = (rounded + page() - 1) / page() * page(), all = inner + 2 * page();
    void* map = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(static_cast<char*>(map) + page(), inner, PROT_READ | PROT_WRITE) != 0) {
        return OUT_OF_MEMORY;
    }
    // It ends where the guard begins; what it holds is no number.
    std::memset(static_cast<char*>(map) + page(), 0xff, inner);
    *address = reinterpret_cast<uintptr_t>(map) + page() + inner - rounded;
    memory[*address] = {map, all};
    return SUCCESS;
}
Result cuMemFreeAsync(Address address, void*) {
    const std::lock_guard guard(lock);
    const auto found = memory.find(address);
    if (found == memory.end()) {
        return INVALID_VALUE;
    }
    munmap(found->second.first, found->second.second);
    memory.erase(found);
    return SUCCESS;
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void*) {
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    return SUCCESS;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void*) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return SUCCESS;
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void*) {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return SUCCESS;
}

Result cuModuleLoadData(void** module, const void* image) {
    *module = reinterpret_cast<void*>(1);
    return std::memcmp(image, "\x7f" "ELF", 4) == 0 ? SUCCESS : INVALID_VALUE;
}
Result cuModuleUnload(void*) { return SUCCESS; }
Result cuModuleGetFunction(void** function, void*, const char* name) {
    const auto found = kernels.find(name);
    if (found == kernels.end()) {
        return NOT_FOUND;
    }
    *function = const_cast<Kernel*>(&found->second);
    return SUCCESS;
}
Result cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared,
                      void*, void** arguments, void**) {
    const std::lock_guard guard(lock);
    if (x == 0 || y == 0 || z == 0 || threads == 0 || threads > 1024 || threads_y != 1 || threads_z != 1 || shared != 0) {
        return INVALID_VALUE;
    }
    try {
        emulation::launch({x, y, z}, threads, ++launches, [&] { (*static_cast<Kernel*>(function))(arguments); });
        return SUCCESS;
    } catch (const std::exception& fault) {
        std::fprintf(stderr, "emulated kernel: %s\n", fault.what());
        return LAUNCH_FAILED;
    }
}

Result cuGetErrorName(Result result, const char** name) {
    *name = result == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR";
    return SUCCESS;
}
Result cuGetErrorString(Result result, const char** text) {
    *text = result == LAUNCH_FAILED ? "unspecified launch failure" : result == INVALID_DEVICE ? "invalid device ordinal" : "an error of the emulated driver";
    return SUCCESS;
}
}
