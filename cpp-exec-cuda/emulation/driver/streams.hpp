// Streams and events as threads and counters: what is asked for is done later, in the order of its stream.
//
// Each stream has a thread that does one thing after the other and now and then takes its time, so that who does not wait is found out. Some streams
// are slower than others, drawn from a seed: what is nearly always in time on one is late on another. An event stands for the place in a stream
// where it was last recorded.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace driver {

using Task = std::function<void()>;

// Where events stand; shared with what waits for them.
struct Mark {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;
    std::chrono::steady_clock::time_point when;
};

// Operations on all streams that are not through, those of destroyed ones as well.
inline std::atomic<uint64_t> unfinished_everywhere = 0;

// Operations that are being done, and whether the process ends: then no other is begun.
inline std::atomic<uint64_t> busy = 0;
inline std::atomic<bool> ending_everywhere = false;

// Called when the process ends, before what operations use is destroyed. What waits for a peer is not waited for for ever.
inline void end_everywhere() {
    ending_everywhere = true;
    for (int tries = 0; busy > 0 && tries < 300; tries++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// How a stream takes its time: one operation in `one_in` is late, by up to `most` microseconds.
struct Pace {
    unsigned one_in, most;
};

inline Pace draw_pace(std::mt19937_64& chance) {
    switch (chance() % 4) {
    case 0: return {2, 600};
    case 1: return {6, 4000};
    default: return {16, 300};
    }
}

// What the thread of a stream and its owner share: the stream may be destroyed while it has something to do.
struct Work {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Task> tasks;
    uint64_t unfinished = 0;
    bool ending = false;
    std::mt19937_64 chance;
    Pace pace;

    explicit Work(uint64_t seed) : chance(seed), pace(draw_pace(chance)) {}

    void run() {
        std::unique_lock guard(lock);
        while (true) {
            changed.wait(guard, [this] { return ending || !tasks.empty(); });
            if (tasks.empty()) {
                return;
            }
            auto task = std::move(tasks.front());
            tasks.pop_front();
            guard.unlock();
            // Long enough for a thread that does not wait to come first.
            if (chance() % pace.one_in == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(chance() % pace.most));
            }
            busy++;
            while (ending_everywhere) {
                busy--;
                std::this_thread::sleep_for(std::chrono::hours(1));
                busy++;
            }
            task();
            task = nullptr;
            busy--;
            unfinished_everywhere--;
            guard.lock();
            if (--unfinished == 0) {
                changed.notify_all();
            }
        }
    }
};

class Stream {
  public:
    explicit Stream(uint64_t seed) : work_(std::make_shared<Work>(seed)) {
        std::thread([work = work_] { work->run(); }).detach();
    }
    // As with the driver: what is under way goes on.
    ~Stream() {
        {
            const std::lock_guard guard(work_->lock);
            work_->ending = true;
        }
        work_->changed.notify_all();
    }

    // True if it was captured and not put on the stream.
    bool push(Task task) {
        if (capturing_) {
            captured_.push_back(std::move(task));
            return true;
        }
        {
            const std::lock_guard guard(work_->lock);
            work_->tasks.push_back(std::move(task));
            work_->unfinished++;
            unfinished_everywhere++;
        }
        work_->changed.notify_all();
        return false;
    }

    // Waits until everything that was pushed has been done.
    void wait() {
        std::unique_lock guard(work_->lock);
        work_->changed.wait(guard, [this] { return work_->unfinished == 0; });
    }

    bool capturing() const { return capturing_; }
    void begin_capture() { capturing_ = true; }
    std::vector<Task> end_capture() {
        capturing_ = false;
        return std::exchange(captured_, {});
    }

  private:
    std::shared_ptr<Work> work_;
    bool capturing_ = false;
    std::vector<Task> captured_;
};

// Records an event behind what the stream has to do.
inline void record(Stream& stream, const std::shared_ptr<Mark>& mark) {
    uint64_t number;
    {
        const std::lock_guard guard(mark->lock);
        number = ++mark->recorded;
    }
    stream.push([mark, number] {
        {
            const std::lock_guard guard(mark->lock);
            mark->reached = std::max(mark->reached, number);
            mark->when = std::chrono::steady_clock::now();
        }
        mark->changed.notify_all();
    });
}

// Waits until the place is reached where the event stands now.
inline void wait_for(const std::shared_ptr<Mark>& mark, uint64_t number) {
    std::unique_lock guard(mark->lock);
    mark->changed.wait(guard, [&] { return mark->reached >= number; });
}

inline uint64_t recorded(const std::shared_ptr<Mark>& mark) {
    const std::lock_guard guard(mark->lock);
    return mark->recorded;
}

} // namespace driver
