// Selects the instruction set and the number of threads of ops, from the environment or by the program. An
// invalid name or number throws std::invalid_argument.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "../threads/parallel.h"
#include "isa.h"

namespace cpu {

constexpr bool kOpenMP =
#ifdef _OPENMP
    true;
#else
    false;
#endif

inline bool is_named(const std::string& name, const Kernels& kernels) {
  return same_in_any_case(name.c_str(), kernels.isa);
}

inline const Kernels* find_kernels(const std::string& isa) {
  std::string known;
  for (const Kernels* kernels : supported_sets()) {
    if (is_named(isa, *kernels)) return kernels;
    known += (known.empty() ? "" : ", ") + std::string(kernels->isa);
  }
  throw std::invalid_argument("this CPU has no kernels for '" + isa + "'; it has: " + known);
}

// The value of an environment variable; null if it is unset or empty.
inline const char* setting(const char* variable) {
  const char* const value = std::getenv(variable);
  return value && *value ? value : nullptr;
}

// The kernels that AIRLLM_CPU_ISA names, else the best ones.
inline const Kernels* choose_kernels() {
  const char* const wanted = setting("AIRLLM_CPU_ISA");
  if (!wanted) return supported_sets().front();
  try {
    return find_kernels(wanted);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("AIRLLM_CPU_ISA: ") + error.what());
  }
}

// Families of AMD's CPUs. Zen 3 and 4 have one number.
constexpr unsigned kZen3 = 0x19, kZen5 = 0x1a;

// Where a CPU's own prefetchers do not keep up with interleaved weights; elsewhere a prefetch costs
// instructions. Measured: on Zen 5 one row of x is read up to twice as fast with it. With AVX2, Zen 3 reads
// one row 1.2 to 1.7 times as fast.
//
// Zen 4 has more room for what comes to the second cache than to the first: 8 KB ahead, not 4 or 16, eight
// rows take 0.6 (q8_0) to 0.9 of the time of prefetches to the first cache with AVX-512, 0.75 to 0.95 with
// AVX2, and models of 1B decode 1.05 (q4_k_m) to 1.2 times (q4_0, q6_k) as fast with AVX2 as without
// prefetches. The fastest products reach memory's speed without; with them such models take 1.1 to 1.25 times
// as long.
//
// Intel's Emerald Rapids lacks room for what comes from memory to the first cache: prefetches of all lines,
// far ahead, are limited by it to 9 GB/s a core. From less than a page ahead and to the second cache, they
// make the prefetcher of that cache run ahead of them. One row is then read at memory's speed, 1.3 to 1.6
// times as fast, in every format and at any distance from 2.5 to 4 KB.
inline Prefetch prefetch_of_this_cpu() {
#if defined(AIRLLM_X86)
  if (is_made_by_intel()) return {true, true, 3072, true};
  if (is_made_by_amd()) {
    const bool zen4 = family() == kZen3 && features().avx512;
    return {family() >= kZen5, family() >= kZen3, 8192, zen4};
  }
#endif
  return {};
}

// AIRLLM_CPU_PREFETCH says 0 or 1 for all products.
inline void choose_prefetch() {
  const char* const wanted = setting("AIRLLM_CPU_PREFETCH");
  if (wanted && std::string(wanted) != "0" && std::string(wanted) != "1")
    throw std::invalid_argument(std::string("AIRLLM_CPU_PREFETCH has value '") + wanted +
                                "', expected 0 or 1");
  prefetch = prefetch_of_this_cpu();
  if (wanted) prefetch.of_fastest = prefetch.of_others = *wanted == '1';
}

// Checks a number of threads. `what` is where it comes from and `text` its original text, for the error
// message.
inline int check_threads(const std::string& what, const std::string& text, int64_t n) {
  if (n < 1 || n > kMostThreads)
    throw std::invalid_argument(what + " has value " + text + ", expected a whole number from 1 to " +
                                std::to_string(kMostThreads));
  return static_cast<int>(n);
}
inline int check_threads(const std::string& what, int64_t n) {
  return check_threads(what, std::to_string(n), n);
}

inline void set_num_threads(int64_t n) { threads() = check_threads("set_num_threads: n", n); }

// Uses AIRLLM_NUM_THREADS if it is set.
inline void choose_threads() {
  const char* const wanted = setting("AIRLLM_NUM_THREADS");
  if (!wanted) return;
  char* end = nullptr;
  const long long n = std::strtoll(wanted, &end, 10);
  threads() = check_threads("AIRLLM_NUM_THREADS", "'" + std::string(wanted) + "'", *end ? 0 : n);
}

// One line: the instruction set, and the number of threads of this thread's ops.
inline std::string device(const Kernels& kernels) {
  const int n = most_threads();
  return std::string("CPU (") + kernels.isa + ", " + std::to_string(n) + (n == 1 ? " thread)" : " threads)");
}

}  // namespace cpu
