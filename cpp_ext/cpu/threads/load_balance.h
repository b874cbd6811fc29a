// Sizes each thread's share of a step's columns: smaller if its core is slow or busy.
//
// A step takes as long as its slowest share. Equal shares wait for the slowest core: occasionally on every
// machine, always on those with two kinds of cores. Many small shares, taken by whichever thread is free,
// cost more than they save: memory is fastest if each thread reads a few long streams. So each call adjusts
// the shares to the times that the same step took before. The result does not change.
#pragma once
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <chrono>
#endif

namespace cpu {

// A clock in arbitrary units, to compare the times of threads. Reading it costs a few nanoseconds.
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

constexpr int kStepKinds = 11;  // each kind of step that is split by columns is balanced separately

// The time of one share of all steps of a call, on its own cache line.
struct alignas(64) ShareTicks {
  uint64_t of[kStepKinds];
};

class __attribute__((visibility("hidden"))) Balance {
 public:
  // The balance of this process's threads, for all work. Never destroyed: a thread may use it when the
  // process ends.
  static Balance& all() {
    static Balance* const balance = new Balance;
    return *balance;
  }

  // Writes where the shares of each kind of step begin and the last one ends: 0 to 1, (kStepKinds, team + 1).
  static int64_t values(int team) { return kStepKinds * (team + 1); }
  void shares(float* begins, int team) {
    const auto put = [&](const auto& size) {
      for (int kind = 0; kind < kStepKinds; ++kind) {
        float at = 0;
        for (int share = 0; share < team; at += size(kind, share++)) *begins++ = at;
        *begins++ = 1;
      }
    };
    // A forked child has one thread. It must not wait for a lock that another thread of its parent held.
    if (team == 1) return put([](int, int) { return 1.f; });
    const std::lock_guard<std::mutex> lock(mutex_);
    start(team);
    put([&](int kind, int share) { return size(kind, share); });
  }

  // The current sizes, a row for each kind of step; empty before the first call of a team.
  std::vector<std::vector<float>> sizes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::vector<float>> rows;
    for (auto from = sizes_.begin(); from != sizes_.end(); from += team_)
      rows.emplace_back(from, from + team_);
    return rows;
  }

  // Learns from the times of the shares in a call of `layers` layers.
  void learn(const ShareTicks* took, int team, int64_t layers) {
    if (team == 1) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    start(team);
    const float rate = std::min(kMostRate, kRate * static_cast<float>(layers));
    for (int kind = 0; kind < kStepKinds; ++kind) fit(took, kind, rate);
  }

 private:
  // A thread that lost its core for a moment is not slow: one call changes a share by a twentieth at most,
  // and one layer changes it by much less.
  static constexpr float kRate = .004f, kMostRate = .1f, kMostFaster = 1.25f;
  static constexpr float kLeast = .25f;  // of an equal share

  // Starts with equal shares if the number of threads has changed.
  void start(int team) {
    if (team == team_) return;
    team_ = team;
    sizes_.assign(static_cast<size_t>(kStepKinds * team), 1.f / static_cast<float>(team));
  }

  float& size(int kind, int share) { return sizes_[static_cast<size_t>(kind * team_ + share)]; }

  void fit(const ShareTicks* took, int kind, float rate) {
    float all = 0, sizes = 0;
    for (int share = 0; share < team_; ++share) all += static_cast<float>(took[share].of[kind]);
    if (all == 0) return;  // there was no such step
    const float mean = all / static_cast<float>(team_), least = kLeast / static_cast<float>(team_);
    for (int share = 0; share < team_; ++share) {
      const float mine = static_cast<float>(took[share].of[kind]);
      const float faster = std::clamp(mean / std::max(mine, 1.f), 1 / kMostFaster, kMostFaster);
      sizes += size(kind, share) = std::max(size(kind, share) * (1 + rate * (faster - 1)), least);
    }
    for (int share = 0; share < team_; ++share) size(kind, share) /= sizes;
  }

  std::mutex mutex_;
  int team_ = 0;
  std::vector<float> sizes_;  // (kStepKinds, team_): fractions
};

}  // namespace cpu
