// Products with numbers that int8 blocks cannot hold, such as NaN: weights are converted to floats.
#pragma once
#include <algorithm>
#include <vector>

#include "gemv/gemv.h"
#include "interleaved/interleaved.h"

namespace cpu {

// Rows of a weight that are converted at a time.
constexpr int64_t kUnpackedRows = 16;

// `all`: its x is packed as for a weight of kF32. `floats`: a buffer of kUnpackedRows * all.k values.
inline void linear_unpacked(const StoredKernels& kernels, const LinearPart& all, float* floats) {
  const int64_t row = row_bytes(all.format, all.k);
  LinearPart part = all;
  part.format = kF32;
  part.interleaved = false;
  part.weight = reinterpret_cast<const char*>(floats);
  part.n0 = 0;
  std::vector<char> band(all.interleaved ? kBand * row : 0);
  for (int64_t n = all.n0; n < all.n1; n += part.n1) {
    const char* rows = all.weight + n * row;
    part.n1 = std::min(kUnpackedRows - n % kUnpackedRows, all.n1 - n);  // of one band
    if (all.interleaved) {
      deinterleave_band(all.format, band.data(), all.weight + n / kBand * kBand * row, all.k);
      rows = band.data() + n % kBand * row;
    }
    kernels.dequantize(all.format, floats, rows, part.n1 * all.k);
    part.out = all.out + n * itemsize(all.out_dtype);
    part.bias = all.bias ? all.bias + n : nullptr;
    kernels.as_stored.linear(part);
  }
}

}  // namespace cpu
