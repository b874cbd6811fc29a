// Threads that go through several steps together and wait for each other between them.
#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>

#include "threads.h"

namespace cpu {

// Tells a core that its thread waits.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// The processors that this process may use.
inline int processors() {
#ifdef _OPENMP
  static const int count = omp_get_num_procs();
  return count;
#else
  return 1;
#endif
}

// A step between two waits takes some microseconds: who waits looks again and again. A core that is given
// away comes back after milliseconds, so that a wait for a thread that has lost its own is no reason to do
// that; but a team of more threads than processors gets on only if those that wait make way.
class __attribute__((visibility("hidden"))) Barrier {
 public:
  explicit Barrier(int team) : looks_(team <= processors() ? kTenMilliseconds : kTenMicroseconds) {}

  // For each of `team` threads, at most so many as there was talk of: returns when all have called this.
  void wait(int team) {
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == team) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int looks = 0; round_.load(std::memory_order_acquire) == round; ++looks)
      looks < looks_ ? pause_briefly() : void(sched_yield());
  }

 private:
  static constexpr int kTenMicroseconds = 400, kTenMilliseconds = 400000;
  const int looks_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

// Calls work(me, all) on each thread of a team, which may be smaller than `team`. `work` must not throw.
template <class Work>
void on_team(int team, const Work& work) {
#ifdef _OPENMP
  if (team > 1) {
#pragma omp parallel num_threads(team)
    work(omp_get_thread_num(), omp_get_num_threads());
    return;
  }
#endif
  work(0, 1);
}

}  // namespace cpu
