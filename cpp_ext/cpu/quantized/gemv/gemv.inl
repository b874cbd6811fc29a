// Products of a few rows with weights as stored.
//
// The products of a format are a struct with
//   packed_bytes(k), pack(to, x, k, error)   a row of x as it is read for these weights
//   kRows<M>                                R for a number of rows of x
//   dots<R, M>(...)                         R rows of weights with M rows of x, each weight unpacked once
#ifndef AIRLLM_QUANTIZED_GEMV_INL
#define AIRLLM_QUANTIZED_GEMV_INL
#include "../conversions.inl"
#include "../interleaved/interleaved.inl"
#include "../interleaved/stored_bands.inl"
#include "gemv.h"
#include "gemv_256.inl"
#include "gemv_32.inl"
#include "gemv_floats.inl"
#include "operands.inl"
#include "several_rows_256.inl"

namespace cpu::ISA {
namespace {
namespace stored {

template <class T>
void add_bias_to(T* out, const float* bias, int64_t rows, int64_t n) {
  for (; rows--; out += n) map(out, n, AddBias{}, out, bias);
}
void add_bias(DType dtype, char* out, const float* bias, int64_t rows, int64_t n) {
  if (dtype == kFloat32) return add_bias_to(reinterpret_cast<float*>(out), bias, rows, n);
  if (dtype == kFloat16) return add_bias_to(reinterpret_cast<Float16*>(out), bias, rows, n);
  add_bias_to(reinterpret_cast<BFloat16*>(out), bias, rows, n);
}

// Rows [n, n + rows) of every stream with rows [m0, m0 + M) of x. Past the end of x or of the weights the
// last row is repeated.
template <class F, int R, int M>
INLINE void dots_of_tile(float (*sums)[R][kTile], const LinearPart& part, int64_t m0, int64_t each, int64_t n,
                         int64_t rows) {
  const int64_t row = row_bytes(part.format, part.k);
  Operands<R, M> at;
  for (int i = 0; i < M; ++i) at.x[i] = part.x + smaller(m0 + i, part.packed_rows() - 1) * part.x_bytes;
  at.k = part.k;
  for (int64_t j = 0; j < rows; ++j) {
    for (int r = 0; r < R; ++r)
      at.w[r] = part.weight + smaller(part.n0 + r * each + n + j, part.n1 - 1) * row;
    float results[R][M];
    F::template dots<R, M>(results, at);
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < M; ++i) sums[i][r][j] = results[r][i];
  }
}

// Rows of a tile: small enough that its weights stay in cache while successive groups of rows of x use them.
INLINE int64_t rows_of_tile(int64_t bytes) {
  constexpr int64_t kCached = 1 << 18;
  return bytes * kTile <= kCached ? kTile : bytes < kCached ? kCached / bytes : 1;
}

// Adds the results of each row and of its rounding error, which follow each other, to one result.
template <int R>
INLINE void add_rounding_error(float (*sums)[R][kTile], int64_t m) {
  for (int64_t i = 0; i < m; ++i)
    for (int r = 0; r < R; ++r) map(sums[i][r], kTile, AddBias{}, sums[2 * i][r], sums[2 * i + 1][r]);
}

// Reads the weights as R sequential streams: a row of x is loaded once for R rows of weights, and memory is
// fastest if each thread reads a few long streams.
template <class F, int M, int R = F::template kRows<M>>
void product(const LinearPart& part) {
  const int64_t each = (part.n1 - part.n0 + R - 1) / R;
  const int64_t tile = part.packed_rows() <= M ? kTile : rows_of_tile(R * row_bytes(part.format, part.k));
  for (int64_t n = 0; n < each; n += tile) {
    float sums[M == 4 ? kDecodeRows : M][R][kTile];
    const int64_t rows = smaller(each - n, tile);
    for (int64_t m = 0; m < part.packed_rows(); m += M)
      dots_of_tile<F, R, M>(sums + m, part, m, each, n, rows);
    if (part.with_rounding_error) add_rounding_error(sums, part.m);
    for (int64_t m = 0; m < part.m; ++m)
      for (int r = 0; r < R; ++r) {
        const int64_t at = part.n0 + r * each + n, here = smaller(rows, part.n1 - at);
        if (here <= 0) break;
        store_results(part.out_dtype, part.out, m * part.n + at, here, sums[m][r],
                      part.bias ? part.bias + at : nullptr);
      }
  }
}

struct FewRows {
  int64_t (*packed_bytes)(int64_t k);
  bool (*pack)(char* to, const float* x, int64_t k, float* error);
  LinearKernel *one, *two, *several;
  LinearKernel* bands = nullptr;  // kFewestForBands to kDecodeRows rows with a whole number of bands
};

template <class F, LinearKernel* kOne = product<F, 1>>
constexpr FewRows few_rows_of = {F::packed_bytes, F::pack, kOne, product<F, 2>, product<F, 4>};

// One row of x with floats. Of short rows of weights, four at a time are faster than eight.
template <class T>
void product_of_one(const LinearPart& part) {
  constexpr int64_t kShort = 1024;  // bytes
  (row_bytes(part.format, part.k) < kShort ? product<Floats<T>, 1, 4> : product<Floats<T>, 1>)(part);
}
template <class T>
constexpr FewRows few_rows_of_floats = few_rows_of<Floats<T>, product_of_one<T>>;

template <class F>
constexpr LinearKernel* stored_bands_of() {
  if constexpr (words_of(F::kFormat).count && LANES > 4)
    return multiply_stored_bands<F>;
  else
    return nullptr;
}

template <class F>
constexpr FewRows few_rows_of_blocks() {
  if constexpr (F::kValues == 32)
    return few_rows_of<Blocks32<F>>;
  else
    return {packed_bytes256,
            pack256<F>,
            few_rows256<typename F::OfFewRows, 1>,
            few_rows256<typename F::OfFewRows, 2>,
            several_rows256<F>,
            stored_bands_of<F>()};
}

constexpr FewRows few_rows_table[kFormats] = {few_rows_of_floats<float>, few_rows_of_floats<Float16>,
                                              few_rows_of_floats<BFloat16>,
#define FORMAT(name, ...) few_rows_of_blocks<name>(),
                                              AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
};

void linear(const LinearPart& part) {
  const FewRows& kernels = few_rows_table[part.format];
  const int64_t rows = part.packed_rows();
  if (kernels.bands && rows >= kFewestForBands && rows <= kDecodeRows && part.n % kBand == 0)
    return kernels.bands(part);
  (rows == 1 ? kernels.one : rows == 2 ? kernels.two : kernels.several)(part);
}

int64_t packed_bytes(Format format, int64_t k) {
  return (few_rows_table[format].packed_bytes(k) + 63) / 64 * 64;
}
bool pack(Format format, char* to, const float* x, int64_t k, float* error) {
  return few_rows_table[format].pack(to, x, k, error);
}

// ---- interleaved weights

template <class F>
constexpr LinearKernel* interleaved_of() {
  if constexpr (words_of(F::kFormat).count)
    return multiply_interleaved<F>;
  else
    return nullptr;
}
constexpr LinearKernel* interleaved_table[kFormats] = {nullptr, nullptr, nullptr,
#define FORMAT(name, ...) interleaved_of<name>(),
                                                       AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
};

bool no_faster() { return false; }
constexpr bool (*faster_interleaved[kFormats])() = {no_faster, no_faster, no_faster,
#define FORMAT(name, ...) is_faster_interleaved<name>,
                                                    AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
};
bool is_faster_interleaved(Format format) { return faster_interleaved[format](); }

int64_t interleaved_packed_bytes(Format format, int64_t k) {
  return kBlocks[format].values == 32 ? (rounded_bytes(k) + 63) / 64 * 64 : packed_bytes(format, k);
}
bool pack_for_interleaved(Format format, char* to, const float* x, int64_t k, float* error) {
  return kBlocks[format].values == 32 ? round_row(to, x, k, error) : pack(format, to, x, k, error);
}
void linear_interleaved(const LinearPart& part) { interleaved_table[part.format](part); }

constexpr StoredKernels stored_kernels = {
    dequantize,
    quantize,
    widen,
    add_bias,
    {packed_bytes, pack, linear},
    {interleaved_packed_bytes, pack_for_interleaved, linear_interleaved},
    is_faster_interleaved};

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
