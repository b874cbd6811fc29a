// out (m, n) = a (m, k) @ b (k, n) for up to eight rows of a. The cost is reading b, once, in memory order.
//
// A few rows of b at a time are multiplied in registers and added to sums in cache. Each kDepthOfSums
// elements of k are summed separately, so that a long sum is as accurate as a short one.
#ifndef AIRLLM_GEMV_INL
#define AIRLLM_GEMV_INL
#include "../kernels.h"
#include "../simd/vectors.inl"

namespace cpu::ISA {
namespace {

constexpr int64_t kFewRows = 8;
constexpr int64_t kPiece = 1024;                // columns
constexpr int64_t kPieceOfOneRow = 4 * kPiece;  // longer reads if a has one row
constexpr int64_t kDepthOfSums = 512;
constexpr int64_t kAtOnce = 8;  // rows of b, if a row is long: each is a stream from memory
// A larger b is in memory, and is prefetched. Prefetching from caches costs more time than it saves.
constexpr int64_t kInCache = int64_t{16} << 20;

// sums (kRows, kVecs vectors) += a (kRows, depth) @ b (depth, kVecs vectors)
template <int kRows, int kVecs, class T>
INLINE void add_product(float* sums, const float* a, const T* b, int64_t stride, int64_t depth, bool fetch) {
  constexpr int kChains = kRows * kVecs < 4 ? 4 : kRows * kVecs < 8 ? 2 : 1;  // hides an addition's latency
  Vec sum[kChains][kRows][kVecs] = {};
  int64_t p = 0;
  for (; p + kChains <= depth; p += kChains)
    for (int c = 0; c < kChains; ++c)
      for (int v = 0; v < kVecs; ++v) {
        const T* const from = b + (p + c) * stride + v * LANES;
        if (fetch) __builtin_prefetch(from + kAtOnce * stride, 0, 2);
        const Vec of_b = load(from);
        for (int r = 0; r < kRows; ++r) sum[c][r][v] += a[r * kDepthOfSums + p + c] * of_b;
      }
  for (; p < depth; ++p)
    for (int v = 0; v < kVecs; ++v)
      for (int r = 0; r < kRows; ++r)
        sum[0][r][v] += a[r * kDepthOfSums + p] * load(b + p * stride + v * LANES);
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVecs; ++v) {
      Vec all = sum[0][r][v];
      for (int c = 1; c < kChains; ++c) all += sum[c][r][v];
      float* const to = sums + r * kPiece + v * LANES;
      store(to, load(to) + all);
    }
}

// Columns from j on: kVecs vectors at a time, then half as many. The last vector ends with b's columns; its
// sums still follow those of the others.
template <int kRows, int kVecs, class T>
INLINE void add_columns(float* sums, const float* a, const T* b, int64_t stride, int64_t depth, int64_t j,
                        int64_t n, bool fetch) {
  for (; j + kVecs * LANES <= n; j += kVecs * LANES)
    add_product<kRows, kVecs>(sums + j, a, b + j, stride, depth, fetch);
  if constexpr (kVecs > 1)
    add_columns<kRows, kVecs / 2>(sums, a, b, stride, depth, j, n, fetch);
  else if (j < n)
    add_product<kRows, 1>(sums + j, a, b + n - LANES, stride, depth, fetch);
}

// sums (kRows, n) += a (kRows, depth) @ b (depth, n), LANES <= n <= kPiece
template <int kRows, class T>
inline void add_products(float* sums, const float* a, const T* b, int64_t stride, int64_t depth, int64_t n,
                         bool fetch) {
  constexpr int kVecs = kRows == 1 ? 8 : VECTORS == 32 ? 16 / kRows : 8 / kRows;
  const int64_t at_once = n > 256 ? kAtOnce : depth;
  for (int64_t p = 0; p < depth; p += at_once)
    add_columns<kRows, kVecs>(sums, a + p, b + p * stride, stride, depth - p < at_once ? depth - p : at_once,
                              0, n, fetch);
}

template <class T>
INLINE void add_products(float* sums, const float* a, const T* b, int64_t stride, int64_t m, int64_t depth,
                         int64_t n, bool fetch) {
  const auto add = m == 1 ? add_products<1, T> : m <= 4 ? add_products<4, T> : add_products<8, T>;
  if (n >= LANES) return add(sums, a, b, stride, depth, n, fetch);
  alignas(64) float wide[kDepthOfSums * LANES];
  for (int64_t p = 0; p < depth; ++p) store(wide + p * LANES, load(b + p * stride, n));
  const auto add_wide = m == 1   ? add_products<1, float>
                        : m <= 4 ? add_products<4, float>
                                 : add_products<8, float>;
  add_wide(sums, a, wide, LANES, depth, LANES, false);
}

struct Add {
  INLINE Vec operator()(Vec a, Vec b) const { return a + b; }
};

// Adds the sums of the columns, as add_products() leaves them, to `totals`.
INLINE void add_sums(float* totals, const float* sums, int64_t n) {
  const int64_t whole = n / LANES * LANES;
  map(totals, whole, Add{}, totals, sums);
  const int64_t rest = n - whole;
  const float* const last = sums + whole + (n >= LANES ? LANES - rest : 0);
  for (int64_t j = 0; j < rest; ++j) totals[whole + j] += last[j];
}

template <class T>
void gemv(float* totals, const void* a_, const void* b_, const FewRowsPart& part) {
  const T *const a = static_cast<const T*>(a_), *const b = static_cast<const T*>(b_);
  alignas(64) float sums[kFewRows * kPiece], of_a[kFewRows * kDepthOfSums];
  const int64_t width = part.n1 - part.n0, padded = part.m == 1 ? 1 : part.m <= 4 ? 4 : 8;
  const int64_t piece = part.m == 1 ? kPieceOfOneRow : kPiece;
  const bool fetch = part.k * part.n * static_cast<int64_t>(sizeof(T)) > kInCache;
  __builtin_memset(totals, 0, sizeof(float) * part.m * width);
  for (int64_t i = part.m; i < padded; ++i)
    __builtin_memset(of_a + i * kDepthOfSums, 0, sizeof(float) * kDepthOfSums);
  for (int64_t p = part.k0; p < part.k1; p += kDepthOfSums) {
    const int64_t depth = part.k1 - p < kDepthOfSums ? part.k1 - p : kDepthOfSums;
    for (int64_t i = 0; i < part.m; ++i) map(of_a + i * kDepthOfSums, depth, Identity{}, a + i * part.k + p);
    for (int64_t j = 0; j < width; j += piece) {
      const int64_t n = width - j < piece ? width - j : piece;
      const int64_t used = (n + LANES - 1) / LANES * LANES;
      for (int64_t i = 0; i < padded; ++i) __builtin_memset(sums + i * kPiece, 0, sizeof(float) * used);
      add_products(sums, of_a, b + p * part.n + part.n0 + j, part.n, part.m, depth, n, fetch);
      for (int64_t i = 0; i < part.m; ++i) add_sums(totals + i * width + j, sums + i * kPiece, n);
    }
  }
}

// Fewer columns than a vector has lanes: b is read as one long row, and each vector of it is multiplied by
// the elements of a that belong to its lanes.
template <int kColumns, int kFirst, int... I>
INLINE Vec repeat(Vec a, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, a, ((kFirst * LANES + I) / kColumns)...);
}

template <int kColumns, int... V>
INLINE void add_narrow(Vec* sum, const float* a, const float* b, std::integer_sequence<int, V...>) {
  const Vec rows = load(a);
  ((sum[V] += repeat<kColumns, V>(rows, Lanes{}) * load(b + V * LANES)), ...);
}

template <int kColumns>
void narrow(float* totals, const float* a, const float* b, int64_t k) {
  constexpr int kChains = kColumns < 4 ? 4 : 1;
  constexpr auto kVectors = std::make_integer_sequence<int, kColumns>{};
  Vec sum[kChains][kColumns] = {};
  int64_t p = 0;
  for (; p + kChains * LANES <= k; p += kChains * LANES)
    for (int c = 0; c < kChains; ++c)
      add_narrow<kColumns>(sum[c], a + p + c * LANES, b + (p + c * LANES) * kColumns, kVectors);
  for (; p < k; p += LANES) {  // the rest, in whole vectors
    float of_a[LANES] = {}, of_b[LANES * kColumns] = {};
    const int64_t rows = k - p < LANES ? k - p : LANES;
    __builtin_memcpy(of_a, a + p, sizeof(float) * rows);
    __builtin_memcpy(of_b, b + p * kColumns, sizeof(float) * rows * kColumns);
    add_narrow<kColumns>(sum[0], of_a, of_b, kVectors);
  }
  float all[(kColumns + 1) * LANES];  // LANES rows of columns, and what the last load reads past them
  for (int v = 0; v < kColumns; ++v) {
    for (int c = 1; c < kChains; ++c) sum[0][v] += sum[c][v];
    store(all + v * LANES, sum[0][v]);
  }
  store(all + kColumns * LANES, Vec{});
  Vec total = Vec{};
  for (int r = 0; r < LANES; ++r) total += load(all + r * kColumns);
  store(all, total);
  for (int j = 0; j < kColumns; ++j) totals[j] += all[j];
}

using Narrow = void(float* totals, const float* a, const float* b, int64_t k);
template <int... I>
INLINE Narrow* narrow_of(int64_t n, std::integer_sequence<int, I...>) {
  static constexpr Narrow* kByColumns[] = {narrow<I + 1>...};
  return kByColumns[n - 1];
}

// float32, fewer columns than a vector has lanes
void narrow_rows(float* totals, const void* a_, const void* b_, const FewRowsPart& part) {
  // b is read again for each row of a, from cache if the depth is small enough.
  const int64_t depth = part.m == 1 ? kDepthOfSums * LANES : (4096 / part.n + LANES) / LANES * LANES;
  const float *const a = static_cast<const float*>(a_), *const b = static_cast<const float*>(b_);
  Narrow* const add = narrow_of(part.n, std::make_integer_sequence<int, LANES - 1>{});
  __builtin_memset(totals, 0, sizeof(float) * part.m * part.n);
  for (int64_t p = part.k0; p < part.k1; p += depth)
    for (int64_t i = 0; i < part.m; ++i)
      add(totals + i * part.n, a + i * part.k + p, b + p * part.n, part.k1 - p < depth ? part.k1 - p : depth);
}

void gemv_float(float* totals, const void* a, const void* b, const FewRowsPart& part) {
  (part.n < LANES ? narrow_rows : gemv<float>)(totals, a, b, part);
}

// out[i] = the sum of totals[i], totals[i + n], ... over `parts` parts
template <class T>
void sum_parts(void* out, float* totals, int64_t parts, int64_t n) {
  for (int64_t p = 1; p < parts; ++p) map(totals, n, Add{}, totals, totals + p * n);
  map(static_cast<T*>(out), n, Identity{}, totals);
}

}  // namespace
}  // namespace cpu::ISA

#endif
