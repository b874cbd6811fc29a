// Kernels on weights as stored: plain floats, or blocks of quantized values.
#pragma once
#include "../../dtypes.h"
#include "../blocks/codebooks.h"
#include "../formats.h"

namespace cpu {

// The most rows of x in one product. Each weight is then read from memory once, and from cache once per four
// rows.
constexpr int64_t kDecodeRows = 16;

// Columns [n0, n1) of out (m, n) = x (m, k) @ weight (n, k)^T + bias. For weights as stored, see
// rows_as_stored(); for interleaved ones, any number of rows.
struct LinearPart {
  Format format;  // of the weight
  DType out_dtype;
  char* out;
  int64_t m, n, k, n0, n1;
  const char* weight;
  const char* x;             // rows as written by pack()
  int64_t x_bytes;           // of each
  const float* bias;         // or null
  bool with_rounding_error;  // each row of x is followed by its rounding error as another row
  bool interleaved = false;  // the weight: interleaved.h

  int64_t packed_rows() const { return with_rounding_error ? 2 * m : m; }
};
using LinearKernel = void(const LinearPart& part);

// Products with weights of one layout.
struct ProductKernels {
  // Packs a row of x as linear() reads it for weights of a format: packed_bytes() bytes, 64-byte aligned.
  // False: int8 blocks cannot hold it (NaN, infinities, or only tiny numbers). If `error` is not null, it
  // receives x minus the values of its blocks; it may be x.
  int64_t (*packed_bytes)(Format format, int64_t k);
  bool (*pack)(Format format, char* to, const float* x, int64_t k, float* error);
  LinearKernel* linear;
};

// Which products prefetch interleaved weights: the fastest ones, which multiply one row of x by vectors of a
// whole line of memory, or by q8_0, and all others; how many bytes ahead of what is multiplied; and whether
// to the second cache, not the first. choose_prefetch() decides when the kernels are chosen.
struct Prefetch {
  bool of_fastest = false, of_others = false;
  int ahead = 8192;
  bool to_second_cache = false;
};
inline Prefetch prefetch;

struct StoredKernels {
  // n is a whole number of blocks.
  void (*dequantize)(Format format, float* out, const char* blocks, int64_t n);
  void (*quantize)(Format format, char* blocks, const float* x, int64_t n);
  // Converts n floats of a dtype to float32.
  void (*widen)(DType dtype, float* out, const void* x, int64_t n);
  void (*add_bias)(DType dtype, char* out, const float* bias, int64_t rows, int64_t n);
  ProductKernels as_stored, interleaved;
  bool (*is_faster_interleaved)(Format format);

  const ProductKernels& products(bool of_interleaved) const {
    return of_interleaved ? interleaved : as_stored;
  }
};

// Up to this many rows of x, a weight is multiplied as stored. For more rows it is cheaper to unpack it
// first. The kernels of blocks of 256 do that themselves.
constexpr bool takes_any_rows(Format format) { return kBlocks[format].values == 256; }
constexpr int64_t rows_as_stored(Format format) {
  return takes_any_rows(format) ? INT64_MAX : is_quantized(format) ? kDecodeRows : 8;
}
constexpr int64_t row_bytes(Format format, int64_t k) {
  return k / kBlocks[format].values * kBlocks[format].bytes;
}

}  // namespace cpu
