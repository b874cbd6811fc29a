// Shares work out among threads (OpenMP, where the compiler has it).
#pragma once
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace cpu {

inline int default_threads() {
#ifdef _OPENMP
  if (const char* wanted = std::getenv("AIRLLM_NUM_THREADS"))
    if (const int n = std::atoi(wanted); n > 0) return n;
  return omp_get_max_threads();  // OMP_NUM_THREADS, or the processors this process may use
#else
  return 1;
#endif
}

inline std::atomic<int>& threads() {
  static std::atomic<int> count{default_threads()};
  return count;
}

// OpenMP's threads do not survive a fork: a child that waited for them would hang.
inline void run_alone_after_fork() {
  pthread_atfork(nullptr, nullptr, [] { threads() = 1; });
}

// Work below this, in elements of an elementwise op, is done sooner than a second thread has started.
constexpr int64_t kWorthAThread = 1 << 14;

// Calls work(begin, end) on at most `most` parts of [0, n), each on one thread. `cost` is one item's, in
// elements of an elementwise op; parts begin at multiples of `step`. `work` must not throw.
template <class Work>
void parallel(int64_t n, int64_t cost, int64_t step, int most, const Work& work) {
#ifdef _OPENMP
  const int64_t useful = std::min<int64_t>(n * cost / kWorthAThread, (n + step - 1) / step);
  const int team = static_cast<int>(std::min<int64_t>(most, useful));
  if (team > 1) {
#pragma omp parallel num_threads(team)
    {
      const int64_t steps = (n + step - 1) / step, me = omp_get_thread_num(), all = omp_get_num_threads();
      const int64_t begin = steps * me / all * step, end = std::min(n, steps * (me + 1) / all * step);
      if (begin < end) work(begin, end);
    }
    return;
  }
#endif
  if (n > 0) work(0, n);
}

}  // namespace cpu
