// What ops compute with: an instruction set and a number of threads, as the environment says or the program
// does. A name or a number that cannot be is std::invalid_argument.
#pragma once
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>

#include "targets.h"
#include "threads.h"

namespace cpu {

constexpr bool kOpenMP =
#ifdef _OPENMP
    true;
#else
    false;
#endif

inline const Kernels* kernels_named(const std::string& isa) {
  std::string known;
  for (const Kernels* kernels : supported()) {
    if (isa == kernels->isa) return kernels;
    known += (known.empty() ? "" : ", ") + std::string(kernels->isa);
  }
  throw std::invalid_argument("this CPU has no kernels for '" + isa + "'; it has: " + known);
}

// Those that AIRLLM_CPU_ISA names, else the best ones.
inline const Kernels* chosen_kernels() {
  const char* const wanted = std::getenv("AIRLLM_CPU_ISA");
  if (!wanted || !*wanted) return supported().front();
  try {
    return kernels_named(wanted);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("AIRLLM_CPU_ISA: ") + error.what());
  }
}

inline void set_num_threads(int n) {
  if (n < 1)
    throw std::invalid_argument("set_num_threads: n has value " + std::to_string(n) + ", expected 1 or more");
  threads() = kOpenMP ? n : 1;
}

// As AIRLLM_NUM_THREADS says, if it does.
inline void choose_threads() {
  const char* const wanted = std::getenv("AIRLLM_NUM_THREADS");
  if (!wanted) return;
  char* end = nullptr;
  const long n = std::strtol(wanted, &end, 10);
  if (*end || end == wanted || n < 1 || n > std::numeric_limits<int>::max())
    throw std::invalid_argument("AIRLLM_NUM_THREADS has value '" + std::string(wanted) +
                                "', expected a whole number from 1");
  set_num_threads(static_cast<int>(n));
}

// One line: the instruction set and the threads of this thread's ops.
inline std::string device(const Kernels& kernels) {
  const int n = most_threads();
  return std::string("CPU (") + kernels.isa + ", " + std::to_string(n) + (n == 1 ? " thread)" : " threads)");
}

}  // namespace cpu
