// How much of a step each thread of a team gets: less where its core is slow, or busy with something else.
//
// A step takes as long as its slowest share. Equal shares wait for the slowest core: now and then on every
// machine, always on those with cores of two kinds. Many small shares, for whoever is free, cost more than
// they save: memory is fastest where each thread reads a few long streams. So shares are fitted, from call to
// call, to the time that those of the same step took the last time. What is computed stays the same.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <chrono>
#endif

namespace cpu {

// Time in units of its own: to compare what several threads take. Costs a few nanoseconds.
inline uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t count;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

constexpr int kStepKinds = 8;  // each kind of step is balanced for itself

// What one share of all steps of a call took, on a cache line of its own.
struct alignas(64) ShareTicks {
  uint64_t of[kStepKinds];
};

class __attribute__((visibility("hidden"))) Balance {
 public:
  // Where the shares of each kind of step begin, and the last one ends: from 0 to 1, (kStepKinds, team + 1).
  static int64_t values(int team) { return kStepKinds * (team + 1); }
  void shares(float* begins, int team) {
    const std::lock_guard<std::mutex> lock(mutex_);
    start(team);
    for (int kind = 0; kind < kStepKinds; ++kind) {
      float at = 0;
      for (int share = 0; share < team; at += size(kind, share++)) *begins++ = at;
      *begins++ = 1;
    }
  }

  // What the shares took.
  void learn(const ShareTicks* took, int team) {
    const std::lock_guard<std::mutex> lock(mutex_);
    start(team);
    for (int kind = 0; kind < kStepKinds; ++kind) fit(took, kind);
  }

 private:
  // A thread that lost its core for a moment is not slow: one call changes a share by a fortieth at most.
  static constexpr float kRate = .1f, kMostFaster = 1.25f, kLeast = .25f;  // the last: of an equal share

  // Equal ones, if those that there are have other threads.
  void start(int team) {
    if (team == team_) return;
    team_ = team;
    sizes_.assign(static_cast<size_t>(kStepKinds * team), 1.f / static_cast<float>(team));
  }

  float& size(int kind, int share) { return sizes_[static_cast<size_t>(kind * team_ + share)]; }

  void fit(const ShareTicks* took, int kind) {
    float all = 0, sizes = 0;
    for (int share = 0; share < team_; ++share) all += static_cast<float>(took[share].of[kind]);
    if (all == 0) return;  // there was no such step
    const float mean = all / static_cast<float>(team_), least = kLeast / static_cast<float>(team_);
    for (int share = 0; share < team_; ++share) {
      const float mine = static_cast<float>(took[share].of[kind]);
      const float faster = std::clamp(mean / std::max(mine, 1.f), 1 / kMostFaster, kMostFaster);
      sizes += size(kind, share) = std::max(size(kind, share) * (1 + kRate * (faster - 1)), least);
    }
    for (int share = 0; share < team_; ++share) size(kind, share) /= sizes;
  }

  std::mutex mutex_;
  int team_ = 0;
  std::vector<float> sizes_;  // (kStepKinds, team_): fractions
};

}  // namespace cpu
