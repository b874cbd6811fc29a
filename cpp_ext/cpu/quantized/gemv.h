// Kernels on weights as they are stored: plain floats, or blocks of quantized values.
#pragma once
#include "../dtypes.h"
#include "formats.h"

namespace cpu {

// Most rows of x that a product takes at once: each weight is then read from memory once, and from cache for
// every four rows.
constexpr int64_t kDecodeRows = 16;

// Columns [n0, n1) of out (m, n) = x (m, k) @ weight (n, k)^T + bias, packed_rows() <= kDecodeRows.
struct LinearPart {
  Format format;  // of the weight
  DType out_dtype;
  char* out;
  int64_t m, n, k, n0, n1;
  const char* weight;
  const char* x;             // rows as pack() has written them
  int64_t x_bytes;           // of each
  const float* bias;         // or null
  bool with_rounding_error;  // after each row of x what rounding has left of it, as a row by itself

  int64_t packed_rows() const { return with_rounding_error ? 2 * m : m; }
};

struct StoredKernels {
  // n values, a whole number of blocks.
  void (*dequantize)(Format format, float* out, const char* blocks, int64_t n);
  void (*quantize)(Format format, char* blocks, const float* x, int64_t n);
  // n floats of a dtype to float32.
  void (*widen)(DType dtype, float* out, const void* x, int64_t n);
  void (*add_bias)(DType dtype, char* out, const float* bias, int64_t rows, int64_t n);
  // A row of x, as linear() reads it beside weights of a format: packed_bytes() bytes, aligned to 64.
  // False: it holds what int8 blocks cannot (NaN, infinities, nothing but tiny numbers). To `error`, if it is
  // not null, goes x less what its blocks hold; it may be x.
  int64_t (*packed_bytes)(Format format, int64_t k);
  bool (*pack)(Format format, char* to, const float* x, int64_t k, float* error);
  void (*linear)(const LinearPart& part);
};

// Up to so many rows of x a weight is multiplied as it lies. With more, it costs less to unpack it first.
constexpr int64_t rows_as_stored(Format format) { return is_quantized(format) ? kDecodeRows : 8; }
constexpr int64_t row_bytes(Format format, int64_t k) {
  return k / kBlocks[format].values * kBlocks[format].bytes;
}

}  // namespace cpu
