// A stand-in for NCCL: the functions that src/nccl calls, between two processes or two threads, over a local socket. It never blocks, as the real one
// with `blocking = 0`: every call starts a thread and returns, and what it has asked for is on its stream only when the communicator says so.
//
// Kept from the real one, since callers must live with it (sources: NCCL's user guide; its src/init.cc and src/enqueue.cc):
// - an operation is put on its stream some time after its call; an event that is recorded before that comes before the operation;
// - operations of one communicator run one after the other, whatever their streams;
// - a send ends when the peer has received, not before;
// - a peer that is gone is not told of: operations wait until they are aborted (or it is told of, with `remote`);
// - an abort waits until nothing of the communicator is on a stream any more;
// - two ranks on one GPU are refused, unless each is a process with its own NCCL_HOSTID, or NCCL_MULTI_RANK_GPU_ENABLE=1.
// And found out, where the real one would hang or do anything: another call before the last is through, counts that differ, no current device.
//
// CPP_FAKE_NCCL=word,word..: seed=N (of all delays), delay_us=N (the longest; 300), fail_at=N (the Nth operation of this process fails behind the
// scenes), stall_at=N (the Nth comes to its stream, stalls there, and fails a little later), hang_init (connections are never made), version=N (what ncclGetVersion says), remote (the end
// of the peer is told as ncclRemoteError).
#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <poll.h>
#include <random>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include "hook.hpp"

namespace {

constexpr int SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7;

struct UniqueId {
    char text[128];
};
struct Config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster, least, most;
    const char* net;
    int split;
};

// What CPP_FAKE_NCCL says of a word: `otherwise` if it is not there, 1 if it has no number.
uint64_t option(const std::string& word, uint64_t otherwise) {
    const char* all = std::getenv("CPP_FAKE_NCCL");
    std::string rest = all == nullptr ? "" : all;
    while (!rest.empty()) {
        const auto end = std::min(rest.find(','), rest.size());
        const std::string one = rest.substr(0, end);
        rest.erase(0, std::min(end + 1, rest.size()));
        if (one == word) {
            return 1;
        }
        if (one.rfind(word + "=", 0) == 0) {
            return std::strtoull(one.c_str() + word.size() + 1, nullptr, 10);
        }
    }
    return otherwise;
}

// A number between 0 and `below`, from one stream of chance per process.
uint64_t chance(uint64_t below) {
    static std::mutex lock;
    static std::mt19937_64 source(option("seed", 1) * 7919 + 17);
    const std::lock_guard guard(lock);
    return below == 0 ? 0 : source() % below;
}
void take_time() {
    // Mostly none, so that both orders of anything that may race are seen.
    if (chance(2) == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(chance(option("delay_us", 300))));
    }
}
std::atomic<uint64_t> operations = 0;

// What ranks tell each other when they meet.
struct Greeting {
    uint64_t host;
    uint32_t rank, many_on_one_gpu;
};
// The host, as NCCL tells hosts apart: once for each process.
uint64_t host_hash() {
    static const uint64_t hash = [] {
        char name[256] = {};
        const char* id = std::getenv("NCCL_HOSTID");
        if (id == nullptr) {
            gethostname(name, sizeof name - 1);
            id = name;
        }
        uint64_t sum = 5381;
        for (; *id != 0; id++) {
            sum = sum * 33 ^ static_cast<unsigned char>(*id);
        }
        return sum;
    }();
    return hash;
}

struct Comm {
    std::mutex lock;
    std::condition_variable changed;
    int state = IN_PROGRESS, rank = 0, socket = -1;
    std::string said;
    bool aborted = false;
    // Operations by their numbers, and those that are not over, on a stream or on their way to one.
    uint64_t issued = 0, finished = 0, under_way = 0, threads = 0;

    ~Comm() {
        if (socket >= 0) {
            close(socket);
        }
    }
    bool is_aborted() {
        const std::lock_guard guard(lock);
        return aborted;
    }
    // The first error stays.
    void becomes(int result, const std::string& text = "") {
        const std::lock_guard guard(lock);
        if (state == SUCCESS || state == IN_PROGRESS) {
            state = result;
            said = text;
        }
        changed.notify_all();
    }
};
using Shared = std::shared_ptr<Comm>;

Shared& comm_of(void* handle) {
    return *static_cast<Shared*>(handle);
}

// Does something behind the scenes.
template <class Task>
int start(const Shared& comm, Task task) {
    {
        const std::lock_guard guard(comm->lock);
        // What has failed since stays so.
        comm->state = comm->state == SUCCESS ? IN_PROGRESS : comm->state;
        comm->threads++;
    }
    std::thread([comm, task] {
        task();
        const std::lock_guard guard(comm->lock);
        comm->threads--;
        comm->changed.notify_all();
    }).detach();
    return IN_PROGRESS;
}

enum class Came { THROUGH, ABORTED, GONE };

// Moves bytes; looks up every few milliseconds whether it is to stop.
Came transfer(Comm& comm, void* memory, size_t bytes, bool out) {
    auto* at = static_cast<char*>(memory);
    while (bytes > 0) {
        if (comm.is_aborted()) {
            return Came::ABORTED;
        }
        pollfd ready{comm.socket, static_cast<short>(out ? POLLOUT : POLLIN), 0};
        if (poll(&ready, 1, 5) == 0) {
            continue;
        }
        const ssize_t moved = out ? send(comm.socket, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(comm.socket, at, bytes, MSG_DONTWAIT);
        if (moved > 0) {
            at += moved;
            bytes -= static_cast<size_t>(moved);
        } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
            return Came::GONE;
        }
    }
    return Came::THROUGH;
}

sockaddr_un address_of(const UniqueId& id, socklen_t& length) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // A name in no folder: it ends with its socket.
    std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%.90s", id.text);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(address.sun_path + 1));
    return address;
}

int listen_at(const UniqueId& id) {
    socklen_t length = 0;
    const sockaddr_un address = address_of(id, length);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(socket, reinterpret_cast<const sockaddr*>(&address), length) != 0 || listen(socket, 1) != 0) {
        close(socket);
        return -1;
    }
    return socket;
}

// Rank 0 waits, rank 1 comes. -1: aborted.
int meet(Comm& comm, const UniqueId& id, int rank) {
    const int listening = rank == 0 ? listen_at(id) : -1;
    int found = -1;
    while (found < 0 && !comm.is_aborted()) {
        if (rank == 0) {
            pollfd ready{listening, POLLIN, 0};
            if (poll(&ready, 1, 5) > 0) {
                found = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
            }
            continue;
        }
        socklen_t length = 0;
        const sockaddr_un address = address_of(id, length);
        found = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(found, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
            close(found);
            found = -1;
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }
    if (listening >= 0) {
        close(listening);
    }
    return found;
}

void connect_ranks(const Shared& comm, const UniqueId& id, int rank) {
    take_time();
    while (option("hang_init", 0) != 0) {
        if (comm->is_aborted()) {
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    comm->socket = meet(*comm, id, rank);
    if (comm->socket < 0) {
        return;
    }
    const char* many = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    Greeting own{host_hash(), static_cast<uint32_t>(rank), many != nullptr && many[0] == '1'}, other{};
    if (transfer(*comm, &own, sizeof own, true) != Came::THROUGH || transfer(*comm, &other, sizeof other, false) != Came::THROUGH) {
        return comm->becomes(REMOTE_ERROR, "the peer went away while connecting");
    }
    if (own.rank == other.rank) {
        return comm->becomes(INVALID_ARGUMENT, "both ranks have the same number");
    }
    // There is one GPU.
    if (own.host == other.host && (own.many_on_one_gpu == 0 || other.many_on_one_gpu == 0)) {
        return comm->becomes(INVALID_USAGE, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0");
    }
    comm->becomes(SUCCESS);
}

struct Operation {
    Shared comm;
    bool out;
    void* memory;
    size_t bytes;
    uint64_t number;
    bool stalls;
};

// As a kernel does: nothing but an abort ends its wait.
void wait_for_abort(Comm& comm) {
    std::unique_lock guard(comm.lock);
    comm.changed.wait(guard, [&] { return comm.aborted; });
}

void transfer(const Operation& operation) {
    Comm& comm = *operation.comm;
    // The receiver says how much it takes, then it comes: so a send does not end before somebody receives.
    uint64_t wanted = operation.bytes;
    Came came = transfer(comm, &wanted, sizeof wanted, !operation.out);
    if (came == Came::THROUGH && wanted != operation.bytes) {
        comm.becomes(INVALID_USAGE, std::to_string(operation.bytes) + " bytes are sent, " + std::to_string(wanted) + " received");
        return wait_for_abort(comm);
    }
    if (came == Came::THROUGH) {
        came = transfer(comm, operation.memory, operation.bytes, operation.out);
    }
    if (came == Came::THROUGH) {
        // And the other way round: it has all.
        char all = 1;
        came = transfer(comm, &all, 1, !operation.out);
    }
    if (came == Came::GONE) {
        if (option("remote", 0) != 0) {
            comm.becomes(REMOTE_ERROR, "the peer is gone");
        }
        wait_for_abort(comm);
    }
}

// On the stream.
void run(void* argument) {
    const std::unique_ptr<Operation> operation(static_cast<Operation*>(argument));
    Comm& comm = *operation->comm;
    bool goes = false;
    {
        std::unique_lock guard(comm.lock);
        comm.changed.wait(guard, [&] { return comm.aborted || comm.finished == operation->number; });
        goes = !comm.aborted;
    }
    if (goes) {
        operation->stalls ? wait_for_abort(comm) : transfer(*operation);
    }
    const std::lock_guard guard(comm.lock);
    comm.finished++;
    comm.under_way--;
    comm.changed.notify_all();
}

int issue(void* handle, bool out, void* memory, size_t count, int type, int peer, void* stream) {
    static constexpr size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    const Shared comm = comm_of(handle);
    void* context = nullptr;
    if (cuCtxGetCurrent(&context) != 0 || context == nullptr) {
        return CUDA_ERROR;
    }
    if (type < 0 || type > 9 || peer != 1 - comm->rank || stream == nullptr || memory == nullptr) {
        return INVALID_ARGUMENT;
    }
    uint64_t number = 0;
    {
        const std::lock_guard guard(comm->lock);
        if (comm->state != SUCCESS) {
            comm->said = "an operation before the last call is through";
            return comm->state == IN_PROGRESS ? INVALID_USAGE : comm->state;
        }
        number = comm->issued++;
        comm->under_way++;
    }
    const uint64_t which = ++operations;
    const bool fails = which == option("fail_at", 0), stalls = which == option("stall_at", 0);
    auto* operation = new Operation{comm, out, memory, count * sizes[type], number, stalls};
    return start(comm, [comm, operation, stream, fails, stalls] {
        take_time();
        cpp_fake_enqueue(stream, run, operation);
        fails ? comm->becomes(SYSTEM_ERROR, "a failure that was asked for") : comm->becomes(SUCCESS);
        if (stalls) {
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
            comm->becomes(SYSTEM_ERROR, "a stall that was asked for");
        }
    });
}

} // namespace

extern "C" {

int ncclGetVersion(int* version) {
    *version = static_cast<int>(option("version", 22809));
    return SUCCESS;
}
int ncclGetUniqueId(UniqueId* id) {
    static std::atomic<uint64_t> made = 0;
    std::memset(id->text, 0, sizeof id->text);
    std::random_device source;
    std::snprintf(id->text, sizeof id->text, "cpp-fake-nccl-%d-%llu-%08x", getpid(), static_cast<unsigned long long>(made++), source());
    return SUCCESS;
}
int ncclCommInitRankConfig(void** handle, int ranks, UniqueId id, int rank, const Config* config) {
    void* context = nullptr;
    if (cuCtxGetCurrent(&context) != 0 || context == nullptr) {
        return CUDA_ERROR;
    }
    if (ranks != 2 || rank < 0 || rank > 1 || config->magic != 0xcafebeef || config->blocking != 0) {
        return INVALID_ARGUMENT;
    }
    const auto comm = std::make_shared<Comm>();
    comm->rank = rank;
    *handle = new Shared(comm);
    return start(comm, [comm, id, rank] { connect_ranks(comm, id, rank); });
}
int ncclCommGetAsyncError(void* handle, int* result) {
    const Shared comm = comm_of(handle);
    const std::lock_guard guard(comm->lock);
    *result = comm->state;
    return SUCCESS;
}
int ncclSend(const void* from, size_t count, int type, int peer, void* handle, void* stream) {
    return issue(handle, true, const_cast<void*>(from), count, type, peer, stream);
}
int ncclRecv(void* to, size_t count, int type, int peer, void* handle, void* stream) {
    return issue(handle, false, to, count, type, peer, stream);
}
int ncclCommFinalize(void* handle) {
    const Shared comm = comm_of(handle);
    {
        const std::lock_guard guard(comm->lock);
        if (comm->state != SUCCESS) {
            return INVALID_USAGE;
        }
    }
    return start(comm, [comm] {
        std::unique_lock guard(comm->lock);
        comm->changed.wait(guard, [&] { return comm->under_way == 0 || comm->aborted; });
        if (comm->state == IN_PROGRESS) {
            comm->state = SUCCESS;
        }
    });
}
int ncclCommDestroy(void* handle) {
    delete &comm_of(handle);
    return SUCCESS;
}
int ncclCommAbort(void* handle) {
    const Shared comm = comm_of(handle);
    {
        std::unique_lock guard(comm->lock);
        comm->aborted = true;
        comm->changed.notify_all();
        comm->changed.wait(guard, [&] { return comm->under_way == 0 && comm->threads == 0; });
    }
    delete &comm_of(handle);
    return SUCCESS;
}
const char* ncclGetErrorString(int result) {
    switch (result) {
    case SUCCESS: return "no error";
    case CUDA_ERROR: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case SYSTEM_ERROR: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case INVALID_ARGUMENT: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case INVALID_USAGE: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    case IN_PROGRESS: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}
const char* ncclGetLastError(void* handle) {
    static thread_local std::string text;
    if (handle == nullptr) {
        return "";
    }
    const Shared comm = comm_of(handle);
    const std::lock_guard guard(comm->lock);
    text = comm->said;
    return text.c_str();
}
}
