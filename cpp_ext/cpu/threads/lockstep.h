// Threads that run several steps in lockstep.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>

#include "parallel.h"

namespace cpu {

// Runs steps one after the other, each split into as many shares as the team has threads. A thread takes its
// own share first, then one that no thread has begun. So the team does not wait for a thread that lost its
// core (for milliseconds) between two steps, only for one that lost it within a step. What a step's shares
// read does not change until all of them are done. A thread that returns late must first find the current
// step, and take a share of it, before it reads anything.
class __attribute__((visibility("hidden"))) Lockstep {
 public:
  // The state of begun(share), initially zero.
  using Begun = std::atomic<uint32_t>;

  // `team`: the maximum number of threads.
  explicit Lockstep(int team) : looks_(team <= processors() ? kTenMilliseconds : kTenMicroseconds) {}

  // Calls work(step, share), as thread `me` of `all`, until `count` steps are done.
  template <class Work>
  void run(uint32_t count, uint32_t me, uint32_t all, Begun* begun, const Work& work) {
    for (uint32_t step; (step = done_.load(std::memory_order_acquire) / all) < count;) {
      uint32_t share = me, tried = 0;
      while (tried < all && !begin(begun[share * kApart], step)) {
        share = share + 1 == all ? 0 : share + 1;
        ++tried;
      }
      if (tried < all) {
        work(step, share);
        done_.fetch_add(1, std::memory_order_acq_rel);
      } else {
        wait((step + 1) * all);
      }
    }
  }

  static int64_t bytes(int team) { return team * kApart * static_cast<int64_t>(sizeof(Begun)); }

 private:
  static constexpr int kTenMicroseconds = 400, kTenMilliseconds = 400000, kApart = 16;

  static bool begin(Begun& steps, uint32_t step) {
    uint32_t expected = step;
    return steps.load(std::memory_order_relaxed) == step &&
           steps.compare_exchange_strong(expected, step + 1, std::memory_order_relaxed);
  }

  // Spins: a step takes microseconds, and a core that was given away returns after milliseconds. But a team
  // with more threads than processors makes progress only if waiting threads yield.
  void wait(uint32_t done) const {
    for (int looks = 0; done_.load(std::memory_order_acquire) < done; ++looks)
      looks < looks_ ? pause_briefly() : std::this_thread::yield();
  }

  const int looks_;
  alignas(64) std::atomic<uint32_t> done_{0};
};

}  // namespace cpu
