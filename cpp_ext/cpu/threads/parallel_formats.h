// Multithreaded conversion between stored blocks and floats.
#pragma once
#include <algorithm>

#include "../kernels.h"
#include "../quantized/interleaved/interleaved.h"
#include "parallel.h"

namespace cpu::threaded {

// Converts n values of a dtype, a whole number of blocks.
inline void quantize(const StoredKernels& kernels, Format format, char* blocks, DType dtype, const char* x,
                     int64_t n) {
  const Block& block = kBlocks[format];
  constexpr int64_t kAtOnce = 512;  // values; a quantizer of small blocks may take several together
  share(n / block.values, block.values * 16, 32, [&](int64_t begin, int64_t end) {
    float wide[kAtOnce];
    for (int64_t b = begin; b < end; b += kAtOnce / block.values) {
      const int64_t values = std::min(kAtOnce, (end - b) * block.values);
      kernels.widen(dtype, wide, x + b * block.values * itemsize(dtype), values);
      kernels.quantize(format, blocks + b * block.bytes, wide, values);
    }
  });
}

inline void dequantize(const StoredKernels& kernels, Format format, float* out, const char* blocks,
                       int64_t n) {
  const Block& block = kBlocks[format];
  share(n / block.values, block.values, 1, [&](int64_t begin, int64_t end) {
    kernels.dequantize(format, out + begin * block.values, blocks + begin * block.bytes,
                       (end - begin) * block.values);
  });
}

// Interleaves a weight (n, k) as stored.
inline void interleave(Format format, char* to, const char* stored, int64_t n, int64_t k) {
  const int64_t band = kBand * row_bytes(format, k);
  share(n / kBand, kBand * k / 4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) interleave_band(format, to + i * band, stored + i * band, k);
  });
}

}  // namespace cpu::threaded
