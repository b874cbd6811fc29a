// Products of a few rows with weights as they are stored. Included once per instruction set.
//
// A format is a struct with
//   packed_bytes(k), pack(to, x, k)   a row of x as it is read beside these weights
//   dots<R, M>(...)                   R rows of weights with M rows of x, each weight unpacked once

namespace stored {

#include "bytes.inl"

constexpr int64_t kTile = 64;  // results that wait in float32

// Rows of weights at a time.
template <int M>
constexpr int kWeightRows = M == 1          ? 4
                            : VECTORS == 32 ? 2
                                            : 1;

// Where the operands of dots() lie.
template <int R, int M>
struct Operands {
  const char* w[R];
  const char* x[M];
  int64_t k, row_bytes;
};

#include "quantized_256.inl"
#include "quantized_32.inl"
#include "quantized_floats.inl"

// m <= M rows of x with all rows of a tile. What is missing of x or of the weights is the last row once more.
template <class F, int M>
inline void dots_of_tile(float (*sums)[kTile], const char* weight, int64_t rows, int64_t row_bytes,
                         const char* x, int64_t x_bytes, int64_t m, int64_t k) {
  constexpr int R = kWeightRows<M>;
  Operands<R, M> at;
  for (int i = 0; i < M; ++i) at.x[i] = x + (i < m ? i : m - 1) * x_bytes;
  at.k = k;
  at.row_bytes = row_bytes;
  for (int64_t n = 0; n < rows; n += R) {
    for (int r = 0; r < R; ++r) at.w[r] = weight + (n + r < rows ? n + r : rows - 1) * row_bytes;
    float results[R][M];
    F::template dots<R, M>(results, at);
    for (int r = 0; r < R && n + r < rows; ++r)
      for (int i = 0; i < M && i < m; ++i) sums[i][n + r] = results[r][i];
  }
}

template <class F>
void few_rows(float (*sums)[kTile], const char* weight, int64_t rows, int64_t row_bytes, const char* x,
              int64_t x_bytes, int64_t m, int64_t k) {
  for (int64_t i = 0; i < m; i += 4) {
    const int64_t here = m - i < 4 ? m - i : 4;
    const auto dots = here == 1 ? dots_of_tile<F, 1> : dots_of_tile<F, 4>;
    dots(sums + i, weight, rows, row_bytes, x + i * x_bytes, x_bytes, here, k);
  }
}

struct FewRows {
  int64_t (*packed_bytes)(int64_t k);
  bool (*pack)(char* to, const float* x, int64_t k);
  void (*dots)(float (*sums)[kTile], const char* weight, int64_t rows, int64_t row_bytes, const char* x,
               int64_t x_bytes, int64_t m, int64_t k);
};

template <class F>
constexpr FewRows few_rows_of = {F::packed_bytes, F::pack, few_rows<F>};

constexpr FewRows few_rows_table[kFormats] = {
    few_rows_of<Floats<float>>,   few_rows_of<Floats<Float16>>,  few_rows_of<Floats<BFloat16>>,
    few_rows_of<Blocks32<Q8_0>>,  few_rows_of<Blocks32<Q4_0>>,   few_rows_of<Blocks32<Q4_1>>,
    few_rows_of<Blocks32<Q5_0>>,  few_rows_of<Blocks32<Q5_1>>,   few_rows_of<Blocks256<Q2_K>>,
    few_rows_of<Blocks256<Q3_K>>, few_rows_of<Blocks256<Q4_K>>,  few_rows_of<Blocks256<Q5_K>>,
    few_rows_of<Blocks256<Q6_K>>, few_rows_of<Blocks32<IQ4_NL>>,
};

struct AddBias {
  INLINE Vec operator()(Vec sum, Vec bias) const { return sum + bias; }
};

template <class T>
void add_bias_to(T* out, const float* bias, int64_t rows, int64_t n) {
  for (; rows--; out += n) map(out, n, AddBias{}, out, bias);
}
void add_bias(DType dtype, char* out, const float* bias, int64_t rows, int64_t n) {
  if (dtype == kFloat32) return add_bias_to(reinterpret_cast<float*>(out), bias, rows, n);
  if (dtype == kFloat16) return add_bias_to(reinterpret_cast<Float16*>(out), bias, rows, n);
  add_bias_to(reinterpret_cast<BFloat16*>(out), bias, rows, n);
}

template <class T>
INLINE void store_results(char* out, int64_t n, const float* sums, const float* bias) {
  if (bias)
    map(reinterpret_cast<T*>(out), n, AddBias{}, sums, bias);
  else
    map(reinterpret_cast<T*>(out), n, Same{}, sums);
}

inline void store_results(DType dtype, char* out, int64_t at, int64_t n, const float* sums,
                          const float* bias) {
  if (dtype == kFloat32) return store_results<float>(out + 4 * at, n, sums, bias);
  if (dtype == kFloat16) return store_results<Float16>(out + 2 * at, n, sums, bias);
  store_results<BFloat16>(out + 2 * at, n, sums, bias);
}

void linear(const LinearPart& part) {
  const int64_t row = row_bytes(part.format, part.k);
  for (int64_t n = part.n0; n < part.n1; n += kTile) {
    float sums[kDecodeRows][kTile];
    const int64_t rows = part.n1 - n < kTile ? part.n1 - n : kTile;
    few_rows_table[part.format].dots(sums, part.weight + n * row, rows, row, part.x, part.x_bytes, part.m,
                                     part.k);
    for (int64_t m = 0; m < part.m; ++m)
      store_results(part.out_dtype, part.out, m * part.n + n, rows, sums[m],
                    part.bias ? part.bias + n : nullptr);
  }
}

int64_t packed_bytes(Format format, int64_t k) {
  return (few_rows_table[format].packed_bytes(k) + 63) / 64 * 64;
}
bool pack(Format format, char* to, const float* x, int64_t k) {
  return few_rows_table[format].pack(to, x, k);
}

#include "quantized_values.inl"

constexpr StoredKernels stored_kernels = {dequantize, quantize, widen, add_bias, packed_bytes, pack, linear};

}  // namespace stored
