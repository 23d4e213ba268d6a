// Streams and events as threads and counters: what is asked for is done later, in the order of its stream.
//
// Each stream has a thread that does one thing after the other and now and then takes its time, so that who does not wait is found out. An event
// stands for the place in a stream where it was last recorded.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace driver {

// Where events stand; shared with what waits for them.
struct Mark {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;
};

class Stream {
  public:
    explicit Stream(uint64_t seed) : chance_(seed), thread_([this] { work(); }) {}
    ~Stream() {
        {
            const std::lock_guard guard(lock_);
            ending_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    void push(std::function<void()> task) {
        {
            const std::lock_guard guard(lock_);
            tasks_.push_back(std::move(task));
            unfinished_++;
        }
        changed_.notify_all();
    }

    // Waits until everything that was pushed has been done.
    void wait() {
        std::unique_lock guard(lock_);
        changed_.wait(guard, [this] { return unfinished_ == 0; });
    }

  private:
    void work() {
        std::unique_lock guard(lock_);
        while (true) {
            changed_.wait(guard, [this] { return ending_ || !tasks_.empty(); });
            if (tasks_.empty()) {
                return;
            }
            const auto task = std::move(tasks_.front());
            tasks_.pop_front();
            guard.unlock();
            // Long enough for a thread that does not wait to come first.
            if (chance_() % 16 == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(chance_() % 300));
            }
            task();
            guard.lock();
            if (--unfinished_ == 0) {
                changed_.notify_all();
            }
        }
    }

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    uint64_t unfinished_ = 0;
    bool ending_ = false;
    std::mt19937_64 chance_;
    std::thread thread_;
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
