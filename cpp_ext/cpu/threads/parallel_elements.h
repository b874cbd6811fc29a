// Multithreaded element-wise ops.
#pragma once
#include "../ops/elements.h"
#include "parallel.h"

namespace cpu::threaded {

constexpr int64_t kElements = 1024;  // parts begin at multiples of this

inline void map(MapKernel* kernel, DType dtype, char* out, const char* x, int64_t n) {
  const int64_t size = itemsize(dtype);
  share(n, 1, kElements, [&](int64_t begin, int64_t end) {
    kernel(out + begin * size, x + begin * size, end - begin, 2 * n * size > kCachedBytes);
  });
}

inline void map(PairKernel* kernel, DType dtype, char* out, const char* a, const char* b, int64_t n) {
  const int64_t size = itemsize(dtype);
  share(n, 1, kElements, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * size;
    kernel(out + at, a + at, b + at, end - begin, 3 * n * size > kCachedBytes);
  });
}

}  // namespace cpu::threaded
