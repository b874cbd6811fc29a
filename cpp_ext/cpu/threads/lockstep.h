// Threads that go through several steps together.
#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>

#include "parallel.h"

namespace cpu {

// The processors that this process may use.
inline int processors() {
#ifdef _OPENMP
  static const int count = omp_get_num_procs();
  return count;
#else
  return 1;
#endif
}

// Steps, one after the other, each cut into as many shares as a team has threads. Whoever is there takes a
// share: a thread its own first, then one that no other has begun. So the team does not wait for a thread
// that has lost its core, for milliseconds, between two steps, but only for one that lost it within. What a
// step's shares read stays as it is until all of them are done: a thread that comes back late must look which
// step it is, and take a share of it, before it reads anything.
class __attribute__((visibility("hidden"))) Lockstep {
 public:
  // Where begun(share) lies, zero at first.
  using Begun = std::atomic<uint32_t>;

  // `team`: the most threads that there may be.
  explicit Lockstep(int team) : looks_(team <= processors() ? kTenMilliseconds : kTenMicroseconds) {}

  // Calls work(step, share), for threads me of `all`, until `count` steps are done.
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

  // Looks again and again: a step takes microseconds, and a core that was given away comes back after
  // milliseconds. But a team of more threads than processors gets on only if those that wait make way.
  void wait(uint32_t done) const {
    for (int looks = 0; done_.load(std::memory_order_acquire) < done; ++looks)
      looks < looks_ ? pause_briefly() : void(sched_yield());
  }

  const int looks_;
  alignas(64) std::atomic<uint32_t> done_{0};
};

}  // namespace cpu
