// What has happened, and what is to go wrong.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace driver {

class Watch {
  public:
    void note(const std::string& what) {
        const std::lock_guard guard(lock_);
        counts_[what]++;
    }
    uint64_t count(const std::string& what) {
        const std::lock_guard guard(lock_);
        return counts_[what];
    }

    void fail(const std::string& what, uint64_t after, int result) {
        const std::lock_guard guard(lock_);
        due_[what] = {after, result};
    }
    // What a call returns in place of doing something; 0: it does it.
    int due(const std::string& what) {
        const std::lock_guard guard(lock_);
        const auto found = due_.find(what);
        if (found == due_.end()) {
            return 0;
        }
        if (found->second.first-- > 0) {
            return 0;
        }
        const int result = found->second.second;
        due_.erase(found);
        return result;
    }

    // Kernels that run, and whether a copy within the device has met one.
    std::atomic<int> kernels = 0;

  private:
    std::mutex lock_;
    std::map<std::string, uint64_t> counts_;
    std::map<std::string, std::pair<uint64_t, int>> due_;
};

} // namespace driver
