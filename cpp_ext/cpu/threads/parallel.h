// Splits work among threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "processors.h"
#include "system.h"
#include "thread_pool.h"

namespace cpu {

// The maximum number of threads of an op.
inline std::atomic<int>& threads() {
  static std::atomic<int> count{default_threads()};
  return count;
}

// The same for the ops of this thread; 0: as for the process.
inline int& own_threads() {
  static thread_local int count = 0;
  return count;
}
inline int most_threads() { return own_threads() ? own_threads() : threads().load(); }

// Threads do not survive a fork: a child would wait for them forever.
inline std::atomic<bool>& forked() {
  static std::atomic<bool> is{false};
  return is;
}
inline void run_alone_after_fork() {
  at_fork(nullptr, nullptr, [] { forked() = true; });
}

// Work below this, in elements of an elementwise op, finishes before a second thread starts.
constexpr int64_t kWorthAThread = 1 << 14;

// The number of parts into which parallel() splits n items. `cost` is that of one item, in elements of an
// elementwise op. Parts begin at multiples of `step`.
inline int parts(int64_t n, int64_t cost, int64_t step) {
  const int64_t useful = std::min<int64_t>(n * cost / kWorthAThread, (n + step - 1) / step);
  return forked() ? 1 : static_cast<int>(std::clamp<int64_t>(useful, 1, most_threads()));
}

// Calls work(me, team) on each thread of the team that arrives: on this one with 0, on others possibly not at
// all. `work` must do everything, whichever threads arrive, and must not throw.
template <class Work>
void on_team(int team, const Work& work) {
  ThreadPool::all().run(team, [&](int me) { work(me, team); });
}

// Calls work(item, thread) for every item of [0, n), each as soon as a thread of the team is free: for items
// of unequal cost, the longest first. `work` must not throw.
template <class Work>
void parallel_items(int64_t n, int team, const Work& work) {
  std::atomic<int64_t> next{0};
  on_team(team, [&](int me, int) {
    for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < n;) work(item, me);
  });
}

// The number of pieces of a team's work, as in share(): one per thread, or several if it is long. A thread
// that loses its core to another program delays the others by one piece.
inline int64_t pieces(int team, int64_t work) {
  constexpr int64_t kLong = 1 << 20;  // some tenths of a millisecond
  return team == 1 ? 1 : team * std::clamp<int64_t>(work / (team * kLong), 1, 8);
}

// Calls work(begin, end, piece, thread) for each of `pieces` parts of [0, n). `work` must not throw.
template <class Work>
void parallel(int64_t n, int64_t step, int team, int64_t pieces, const Work& work) {
  const int64_t steps = (n + step - 1) / step;
  parallel_items(pieces, team, [&](int64_t piece, int thread) {
    const int64_t begin = steps * piece / pieces * step,
                  end = std::min(n, steps * (piece + 1) / pieces * step);
    if (begin < end) work(begin, end, piece, thread);
  });
}

template <class Work>
void parallel(int64_t n, int64_t step, int team, const Work& work) {
  parallel(n, step, team, team, [&](int64_t begin, int64_t end, int64_t, int) { work(begin, end); });
}

// The same with as many threads as pay off, often only this one. `cost`: as for parts().
template <class Work>
void share(int64_t n, int64_t cost, int64_t step, const Work& work) {
  if (n * cost < kWorthAThread) return work(0, n);
  const int team = parts(n, cost, step);
  parallel(n, step, team, pieces(team, n * cost),
           [&](int64_t begin, int64_t end, int64_t, int) { work(begin, end); });
}

}  // namespace cpu
