// A stand-in for the CUDA driver: host memory, and the emulated kernels by name. For tests of what calls the driver, unmodified.
//
// Streams are threads (streams.hpp): nothing has happened when a call returns, but that memory of the host has been read, unless it is pinned. Memory
// of the device has guards on both sides (memory.hpp). A kernel that does what it must not lets every later call fail with
// CUDA_ERROR_LAUNCH_FAILED, and what it did is on stderr. Without CUDA_MODULE_LOADING=EAGER the first launch of each kernel waits for the device, as
// with the driver. What happens is counted, and can be made to go wrong (hook.hpp). Machine code is taken and not looked at: tests get it from
// NVRTC all the same.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/uio.h>
#include <unistd.h>

#include "../cuda.hpp"
#include "hook.hpp"
#include "memory.hpp"
#include "streams.hpp"
#include "watch.hpp"

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

driver::Memory device_memory, pinned_memory;
driver::Watch watch;
// The emulation runs one kernel at a time.
std::mutex running;
std::atomic<uint64_t> launches = 0, streams = 0, seed = 0;
std::atomic<int> gpus = 1;

constexpr int SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILED = 719,
              CAPTURE_UNSUPPORTED = 900;
thread_local void* current_context = nullptr;
// The first failure of a kernel: nothing works after it.
std::atomic<int> broken = SUCCESS;

// Streams that are alive, and kernels that have been launched: for the way in which kernels are loaded when they are first used.
std::mutex loading;
std::map<driver::Stream*, void*> alive; // with their contexts
std::set<void*> loaded;
// Kernels of other libraries.
std::set<std::string> loaded_elsewhere;
bool eager = false;

driver::Stream& stream_of(void* stream) {
    return *static_cast<driver::Stream*>(stream);
}
const std::shared_ptr<driver::Mark>& mark_of(void* event) {
    return *static_cast<std::shared_ptr<driver::Mark>*>(event);
}
using Graph = std::vector<driver::Task>;
Graph& graph_of(void* graph) {
    return *static_cast<Graph*>(graph);
}

// The first launch of a kernel that was not loaded with its module waits for the whole device.
void load(void* function) {
    const std::lock_guard guard(loading);
    if (!loaded.insert(function).second) {
        return;
    }
    watch.note("first");
    if (eager) {
        return;
    }
    watch.note("lazy");
    for (const auto& [stream, context] : alive) {
        stream->wait();
    }
}

// Whether memory of the host is there and has these bytes; it may be gone, so the kernel of the system is asked.
bool still_holds(const void* from, const std::vector<char>& bytes) {
    std::vector<char> now(bytes.size());
    iovec here = {now.data(), now.size()}, there = {const_cast<void*>(from), now.size()};
    const ssize_t read = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    // Where that call is not allowed nothing is found out.
    return (read < 0 && errno != EFAULT) || (read == static_cast<ssize_t>(bytes.size()) && now == bytes);
}

// What a call comes to: what was told to go wrong, or what has gone wrong before.
int state(const char* what) {
    const int due = watch.due(what);
    return due != SUCCESS ? due : broken.load();
}

// Whether the calling thread has a context, without which most calls are refused.
bool bound(const char* call) {
    if (current_context == nullptr) {
        watch.note("unbound");
        std::fprintf(stderr, "emulated driver: %s on a thread without a context\n", call);
    }
    return current_context != nullptr;
}

// On a device that is gone nothing happens any more; its memory may be given back.
void copy(void* to, const void* from, size_t bytes) {
    if (broken == SUCCESS) {
        std::memcpy(to, from, bytes);
    }
}

// Copies between places of the device, or of two.
void take_over(unsigned long long to, unsigned long long from, size_t bytes, void* stream) {
    // It takes as long as a link may: half of it comes first.
    stream_of(stream).push([=] {
        const uint64_t ran = watch.count("ran");
        const bool meets = watch.kernels > 0;
        copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes / 2);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        copy(reinterpret_cast<void*>(to + bytes / 2), reinterpret_cast<const void*>(from + bytes / 2), bytes - bytes / 2);
        if (meets || watch.count("ran") != ran) {
            watch.note("overlap");
        }
    });
}

} // namespace

extern "C" {
using Result = int;
using Address = unsigned long long;

void cpp_fake_enqueue(void* stream, void (*run)(void*), void* argument) {
    stream_of(stream).push([run, argument] { run(argument); });
}
void cpp_fake_enqueue_owned(void* stream, void (*run)(void*), void* argument, void (*release)(void*)) {
    const std::shared_ptr<void> owned(argument, release);
    stream_of(stream).push([run, owned] {
        if (broken == SUCCESS) {
            run(owned.get());
        }
    });
}
void cpp_fake_break(int result) {
    int none = SUCCESS;
    if (result == SUCCESS) {
        // What is left on streams does nothing, and must be gone before anything can be done again.
        while (driver::unfinished_everywhere > 0) {
            std::this_thread::yield();
        }
        broken = SUCCESS;
    } else {
        broken.compare_exchange_strong(none, result);
    }
}
void cpp_fake_seed(uint64_t number) {
    seed = number;
    streams = 0;
    const std::lock_guard guard(loading);
    loaded.clear();
    loaded_elsewhere.clear();
}
void cpp_fake_gpus(int count) { gpus = count; }
int cpp_fake_state() { return broken; }
void cpp_fake_wrong(const char* what) { std::fprintf(stderr, "emulated driver: %s\n", what); }
bool cpp_fake_knows(const void* address) { return device_memory.knows(reinterpret_cast<uintptr_t>(address)); }
int cpp_fake_first(const char* kernel) {
    const std::lock_guard guard(loading);
    if (!loaded_elsewhere.insert(kernel).second) {
        return 0;
    }
    watch.note("first");
    return 1;
}
void cpp_fake_note(const char* what) { watch.note(what); }
uint64_t cpp_fake_count(const char* what) { return watch.count(what); }
void cpp_fake_fail(const char* what, uint64_t after, int result) { watch.fail(what, after, result); }

Result cuInit(unsigned) {
    static std::once_flag once;
    std::call_once(once, [] { std::atexit(driver::end_everywhere); });
    const char* how = std::getenv("CUDA_MODULE_LOADING");
    eager = how != nullptr && std::strcmp(how, "EAGER") == 0;
    if (const char* given = std::getenv("CPP_FAKE_SEED")) {
        seed = std::strtoull(given, nullptr, 10);
    }
    if (const char* given = std::getenv("CPP_FAKE_GPUS")) {
        gpus = std::atoi(given);
    }
    return SUCCESS;
}
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
    *count = gpus;
    return SUCCESS;
}
Result cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < gpus ? SUCCESS : INVALID_DEVICE;
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
Result cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = reinterpret_cast<void*>(static_cast<intptr_t>(device) + 1);
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
Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}
Result cuCtxSynchronize() {
    if (!bound("cuCtxSynchronize")) {
        return INVALID_CONTEXT;
    }
    watch.note("wait");
    const std::lock_guard guard(loading);
    for (const auto& [stream, context] : alive) {
        stream->wait();
    }
    return broken;
}
Result cuStreamCreate(void** stream, unsigned) {
    if (!bound("cuStreamCreate")) {
        return INVALID_CONTEXT;
    }
    const auto made = new driver::Stream(seed * 1000 + ++streams);
    const std::lock_guard guard(loading);
    alive[made] = current_context;
    *stream = made;
    return SUCCESS;
}
Result cuStreamCreateWithPriority(void** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
Result cuStreamDestroy_v2(void* stream) {
    const std::lock_guard guard(loading);
    alive.erase(&stream_of(stream));
    delete &stream_of(stream);
    return SUCCESS;
}
Result cuStreamSynchronize(void* stream) {
    if (!bound("cuStreamSynchronize")) {
        return INVALID_CONTEXT;
    }
    watch.note("wait");
    stream_of(stream).wait();
    return broken;
}
Result cuStreamWaitEvent(void* stream, void* event, unsigned) {
    if (const int failed = state("wait")) {
        return failed;
    }
    if (stream_of(stream).capturing()) {
        return CAPTURE_UNSUPPORTED;
    }
    const auto mark = mark_of(event);
    stream_of(stream).push([mark, number = driver::recorded(mark)] { driver::wait_for(mark, number); });
    return SUCCESS;
}
Result cuEventCreate(void** event, unsigned) {
    if (!bound("cuEventCreate")) {
        return INVALID_CONTEXT;
    }
    *event = new std::shared_ptr<driver::Mark>(std::make_shared<driver::Mark>());
    return SUCCESS;
}
Result cuEventDestroy_v2(void* event) {
    delete &mark_of(event);
    return SUCCESS;
}
Result cuEventRecord(void* event, void* stream) {
    if (const int failed = state("record")) {
        return failed;
    }
    if (stream_of(stream).capturing()) {
        return CAPTURE_UNSUPPORTED;
    }
    driver::record(stream_of(stream), mark_of(event));
    return SUCCESS;
}
Result cuEventSynchronize(void* event) {
    watch.note("wait");
    driver::wait_for(mark_of(event), driver::recorded(mark_of(event)));
    return broken;
}
Result cuEventQuery(void* event) {
    const std::lock_guard guard(mark_of(event)->lock);
    if (broken != SUCCESS) {
        return broken;
    }
    return mark_of(event)->reached < mark_of(event)->recorded ? NOT_READY : SUCCESS;
}
Result cuEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
    const std::lock_guard guard(mark_of(start)->lock);
    const std::lock_guard other(mark_of(end)->lock);
    *milliseconds = std::chrono::duration<float, std::milli>(mark_of(end)->when - mark_of(start)->when).count();
    return broken;
}

Result cuMemAllocAsync(Address* address, size_t bytes, void* stream) {
    if (!bound("cuMemAllocAsync")) {
        return INVALID_CONTEXT;
    }
    watch.note("alloc");
    if (stream_of(stream).capturing()) {
        return CAPTURE_UNSUPPORTED;
    }
    *address = device_memory.take(bytes, current_context);
    return *address == 0 ? OUT_OF_MEMORY : broken.load();
}
Result cuMemFreeAsync(Address address, void* stream) {
    if (!bound("cuMemFreeAsync")) {
        return INVALID_CONTEXT;
    }
    watch.note("free");
    if (!device_memory.will_give_back(address)) {
        return INVALID_VALUE;
    }
    stream_of(stream).push([address] { device_memory.give_back(address); });
    return broken;
}
Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    if (!bound("cuMemHostAlloc")) {
        return INVALID_CONTEXT;
    }
    watch.note("alloc");
    *memory = reinterpret_cast<void*>(pinned_memory.take(bytes, nullptr));
    return *memory == nullptr ? OUT_OF_MEMORY : broken.load();
}
Result cuMemFreeHost(void* memory) {
    if (!bound("cuMemFreeHost")) {
        return INVALID_CONTEXT;
    }
    watch.note("free");
    return pinned_memory.give_back(reinterpret_cast<uintptr_t>(memory)) ? broken.load() : INVALID_VALUE;
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void* stream) {
    if (!bound("cuMemsetD8Async")) {
        return INVALID_CONTEXT;
    }
    stream_of(stream).push([=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
    return broken;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
    if (!bound("cuMemcpyHtoDAsync_v2")) {
        return INVALID_CONTEXT;
    }
    if (const int failed = state("copy")) {
        return failed;
    }
    if (pinned_memory.holds(reinterpret_cast<uintptr_t>(from))) {
        stream_of(stream).push([=] { copy(reinterpret_cast<void*>(to), from, bytes); });
        return SUCCESS;
    }
    // Memory that is not pinned may be read during the call or after it: who changes it, or gives it back, before the copy is through is found out.
    const auto* first = static_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(first, first + bytes);
    stream_of(stream).push([=] {
        if (!still_holds(from, *staged)) {
            watch.note("stale");
            std::fprintf(stderr, "emulated driver: memory of the host has changed, or is gone, before it was copied\n");
            cpp_fake_break(LAUNCH_FAILED);
        }
        copy(reinterpret_cast<void*>(to), staged->data(), bytes);
    });
    return SUCCESS;
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
    if (!bound("cuMemcpyDtoHAsync_v2")) {
        return INVALID_CONTEXT;
    }
    if (const int failed = state("copy")) {
        return failed;
    }
    // The real driver waits where the memory is not pinned; who relies on that is found out.
    stream_of(stream).push([=] { copy(to, reinterpret_cast<const void*>(from), bytes); });
    return SUCCESS;
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
    if (!bound("cuMemcpyDtoDAsync_v2")) {
        return INVALID_CONTEXT;
    }
    if (const int failed = state("copy")) {
        return failed;
    }
    if (device_memory.owner(to) != current_context || device_memory.owner(from) != current_context) {
        return INVALID_VALUE;
    }
    take_over(to, from, bytes, stream);
    return SUCCESS;
}
Result cuMemcpyPeerAsync(Address to, void* to_context, Address from, void* from_context, size_t bytes, void* stream) {
    if (!bound("cuMemcpyPeerAsync")) {
        return INVALID_CONTEXT;
    }
    if (const int failed = state("copy")) {
        return failed;
    }
    if (device_memory.owner(to) != to_context || device_memory.owner(from) != from_context) {
        return INVALID_VALUE;
    }
    watch.note("peer");
    take_over(to, from, bytes, stream);
    return SUCCESS;
}

Result cuModuleLoadData(void** module, const void* image) {
    if (!bound("cuModuleLoadData")) {
        return INVALID_CONTEXT;
    }
    *module = reinterpret_cast<void*>(1);
    return std::memcmp(image, "\x7f" "ELF", 4) == 0 ? SUCCESS : INVALID_VALUE;
}
Result cuModuleUnload(void*) { return SUCCESS; }
Result cuModuleGetFunction(void** function, void*, const char* name) {
    if (!bound("cuModuleGetFunction")) {
        return INVALID_CONTEXT;
    }
    const auto found = kernels.find(name);
    if (found == kernels.end()) {
        return NOT_FOUND;
    }
    *function = const_cast<Kernel*>(&found->second);
    return SUCCESS;
}
Result cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared,
                      void* stream, void** arguments, void**) {
    if (!bound("cuLaunchKernel")) {
        return INVALID_CONTEXT;
    }
    watch.note("launch");
    if (x == 0 || y == 0 || z == 0 || threads == 0 || threads > 1024 || threads_y != 1 || threads_z != 1 || shared != 0) {
        return INVALID_VALUE;
    }
    if (const int failed = state("launch")) {
        return failed;
    }
    {
        // A stream is of one context, and so is what runs on it.
        const std::lock_guard guard(loading);
        const auto found = alive.find(&stream_of(stream));
        if (found == alive.end() || found->second != current_context) {
            return INVALID_HANDLE;
        }
    }
    load(function);
    stream_of(stream).push([=, task = (*static_cast<Kernel*>(function))(arguments)] {
        watch.kernels++;
        {
            const std::lock_guard guard(running);
            try {
                if (const int due = watch.due("kernel")) {
                    cpp_fake_break(due);
                } else if (broken == SUCCESS) {
                    emulation::launch({x, y, z}, threads, ++launches, task);
                }
            } catch (const std::exception& fault) {
                std::fprintf(stderr, "emulated kernel: %s\n", fault.what());
                cpp_fake_break(LAUNCH_FAILED);
            }
        }
        watch.kernels--;
        watch.note("ran");
    });
    return SUCCESS;
}

// Graphs: what was put on a stream while it was captured, one behind the other.
Result cuStreamBeginCapture_v2(void* stream, int) {
    if (!bound("cuStreamBeginCapture_v2")) {
        return INVALID_CONTEXT;
    }
    if (stream_of(stream).capturing()) {
        return CAPTURE_UNSUPPORTED;
    }
    stream_of(stream).begin_capture();
    return SUCCESS;
}
Result cuStreamEndCapture(void* stream, void** graph) {
    if (!bound("cuStreamEndCapture")) {
        return INVALID_CONTEXT;
    }
    *graph = new Graph(stream_of(stream).end_capture());
    return broken;
}
Result cuStreamIsCapturing(void* stream, int* status) {
    *status = stream_of(stream).capturing() ? 1 : 0;
    return SUCCESS;
}
Result cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
    if (!bound("cuGraphInstantiateWithFlags")) {
        return INVALID_CONTEXT;
    }
    watch.note("alloc");
    *exec = new Graph(graph_of(graph));
    return broken;
}
Result cuGraphUpload(void*, void*) { return !bound("cuGraphUpload") ? INVALID_CONTEXT : broken.load(); }
Result cuGraphLaunch(void* exec, void* stream) {
    if (!bound("cuGraphLaunch")) {
        return INVALID_CONTEXT;
    }
    watch.note("graph");
    if (const int failed = state("graph")) {
        return failed;
    }
    for (const auto& node : graph_of(exec)) {
        stream_of(stream).push(node);
    }
    return SUCCESS;
}
Result cuGraphExecDestroy(void* exec) {
    delete &graph_of(exec);
    return SUCCESS;
}
Result cuGraphDestroy(void* graph) {
    delete &graph_of(graph);
    return SUCCESS;
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
