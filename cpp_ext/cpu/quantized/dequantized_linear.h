// Products with numbers that int8 blocks cannot hold, such as NaN: weights are converted to floats.
#pragma once
#include <algorithm>

#include "gemv.h"

namespace cpu {

// Rows of a weight that are converted at a time.
constexpr int64_t kUnpackedRows = 16;

// `all`: its x is packed as for a weight of kF32. `floats`: a buffer of kUnpackedRows * all.k values.
inline void linear_unpacked(const StoredKernels& kernels, const LinearPart& all, float* floats) {
  const int64_t row = row_bytes(all.format, all.k);
  LinearPart part = all;
  part.format = kF32;
  part.weight = reinterpret_cast<const char*>(floats);
  part.n0 = 0;
  for (int64_t n = all.n0; n < all.n1; n += kUnpackedRows) {
    part.n1 = std::min(kUnpackedRows, all.n1 - n);
    kernels.dequantize(all.format, floats, all.weight + n * row, part.n1 * all.k);
    part.out = all.out + n * itemsize(all.out_dtype);
    part.bias = all.bias ? all.bias + n : nullptr;
    kernels.linear(part);
  }
}

}  // namespace cpu
