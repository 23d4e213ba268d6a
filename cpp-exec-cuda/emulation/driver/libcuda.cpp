// A stand-in for the CUDA driver: host memory, and the emulated kernels by name. For tests of what calls the driver, unmodified.
//
// Streams are threads (streams.hpp): nothing has happened when a call returns, but that memory of the host has been read. Memory of the device has
// guards on both sides. A kernel that does what it must not lets every later call fail with CUDA_ERROR_LAUNCH_FAILED, and what it did is on stderr.
// Machine code is taken and not looked at: tests get it from NVRTC all the same.
#include <atomic>
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
#include <vector>

#include "../cuda.hpp"
#include "hook.hpp"
#include "streams.hpp"

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

// Makes a task of the places of a kernel's arguments, which it reads at once.
using Kernel = std::function<std::function<void()>(void**)>;

template <class... Arguments, size_t... Number>
Kernel kernel_of(void (*kernel)(Arguments...), std::index_sequence<Number...>) {
    return [kernel](void** given) -> std::function<void()> {
        std::tuple<Arguments...> arguments(*static_cast<std::remove_const_t<Arguments>*>(given[Number])...);
        return [kernel, arguments] { std::apply(kernel, arguments); };
    };
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
std::mutex lock;
// The emulation runs one kernel at a time.
std::mutex running;
std::atomic<uint64_t> launches = 0, streams = 0;

constexpr int SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILED = 719, INVALID_DEVICE = 101;
thread_local void* current_context = nullptr;
// The first failure of a kernel: nothing works after it.
std::atomic<int> broken = SUCCESS;

driver::Stream& stream_of(void* stream) {
    return *static_cast<driver::Stream*>(stream);
}
const std::shared_ptr<driver::Mark>& mark_of(void* event) {
    return *static_cast<std::shared_ptr<driver::Mark>*>(event);
}

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
Result cuDeviceGetName(char* name, int length, int) {
    std::snprintf(name, static_cast<size_t>(length), "an emulated GPU");
    return SUCCESS;
}
Result cuDeviceTotalMem_v2(size_t* bytes, int) {
    *bytes = size_t{1} << 30;
    return SUCCESS;
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
    *stream = new driver::Stream(++streams);
    return SUCCESS;
}
Result cuStreamCreateWithPriority(void** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
Result cuStreamDestroy_v2(void* stream) {
    stream_of(stream).wait();
    delete &stream_of(stream);
    return SUCCESS;
}
Result cuStreamSynchronize(void* stream) {
    stream_of(stream).wait();
    return broken;
}
Result cuStreamWaitEvent(void* stream, void* event, unsigned) {
    const auto mark = mark_of(event);
    stream_of(stream).push([mark, number = driver::recorded(mark)] { driver::wait_for(mark, number); });
    return broken;
}
Result cuEventCreate(void** event, unsigned) {
    *event = new std::shared_ptr<driver::Mark>(std::make_shared<driver::Mark>());
    return SUCCESS;
}
Result cuEventDestroy_v2(void* event) {
    delete &mark_of(event);
    return SUCCESS;
}
Result cuEventRecord(void* event, void* stream) {
    driver::record(stream_of(stream), mark_of(event));
    return broken;
}
Result cuEventSynchronize(void* event) {
    driver::wait_for(mark_of(event), driver::recorded(mark_of(event)));
    return broken;
}
Result cuEventQuery(void* event) {
    const std::lock_guard guard(mark_of(event)->lock);
    return mark_of(event)->reached < mark_of(event)->recorded ? NOT_READY : broken.load();
}

void cpp_fake_enqueue(void* stream, void (*run)(void*), void* argument) {
    stream_of(stream).push([run, argument] { run(argument); });
}
void cpp_fake_break(int result) {
    int none = SUCCESS;
    broken.compare_exchange_strong(none, result);
}

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
Result cuMemFreeAsync(Address address, void* stream) {
    {
        const std::lock_guard guard(lock);
        if (memory.find(address) == memory.end()) {
            return INVALID_VALUE;
        }
    }
    stream_of(stream).push([address] {
        const std::lock_guard guard(lock);
        const auto found = memory.find(address);
        munmap(found->second.first, found->second.second);
        memory.erase(found);
    });
    return broken;
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void* stream) {
    stream_of(stream).push([=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
    return broken;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
    // Memory that is not pinned may change as soon as the call returns.
    const auto* first = static_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(first, first + bytes);
    stream_of(stream).push([=] { std::memcpy(reinterpret_cast<void*>(to), staged->data(), bytes); });
    return broken;
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
    // The real driver waits where the memory is not pinned; who relies on that is found out.
    stream_of(stream).push([=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
    return broken;
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
                      void* stream, void** arguments, void**) {
    if (x == 0 || y == 0 || z == 0 || threads == 0 || threads > 1024 || threads_y != 1 || threads_z != 1 || shared != 0) {
        return INVALID_VALUE;
    }
    stream_of(stream).push([=, task = (*static_cast<Kernel*>(function))(arguments)] {
        const std::lock_guard guard(running);
        try {
            emulation::launch({x, y, z}, threads, ++launches, task);
        } catch (const std::exception& fault) {
            std::fprintf(stderr, "emulated kernel: %s\n", fault.what());
            broken = LAUNCH_FAILED;
        }
    });
    return broken;
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
