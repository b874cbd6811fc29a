// How many processors this process may use, and how many threads an op has by default: by OpenMP in a build
// with it, else by the system and OMP_NUM_THREADS, with the same results.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#elif defined(__linux__)
#include <sched.h>
#endif

namespace cpu {

// More than any machine has processors; a larger number is an error.
constexpr int kMostThreads = 4096;

#ifdef _OPENMP
inline int count_processors() { return omp_get_num_procs(); }
inline int wanted_threads() { return omp_get_max_threads(); }
#else
inline int count_processors() {
#ifdef __linux__
  cpu_set_t mine;
  if (!sched_getaffinity(0, sizeof mine, &mine)) return CPU_COUNT(&mine);
#endif
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

// The first number of OMP_NUM_THREADS, which is that of the outermost level: "4" or "4,2".
inline int wanted_threads() {
  const char* const text = std::getenv("OMP_NUM_THREADS");
  char* end = nullptr;
  const long number = text ? std::strtol(text, &end, 10) : 0;
  while (end && (*end == ' ' || *end == '\t')) ++end;
  const bool valid = number > 0 && (*end == '\0' || *end == ',');
  return valid ? static_cast<int>(std::min<long>(number, kMostThreads)) : count_processors();
}
#endif

inline int processors() {
  static const int count = count_processors();
  return count;
}

inline int default_threads() { return std::min(wanted_threads(), kMostThreads); }

}  // namespace cpu
