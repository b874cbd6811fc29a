// out (m, n) = a (m, k) @ b (k, n), row-major.
//
// Many rows, as in BLIS (Van Zee and van de Geijn, 2015): a block of b and a block of a are unpacked to
// float32 in the order in which the innermost kernel reads them. That kernel keeps a tile of the result,
// kTileRows by kTileVecs vectors, in registers. If the instruction set multiplies pairs of bfloat16, an
// unpacked element is a pair of neighbours along k in place of a float32 (kPer is 2).
#ifndef AIRLLM_MATMUL_INL
#define AIRLLM_MATMUL_INL
#include "../kernels.h"
#include "../simd/transpose.inl"
#include "../simd/vectors.inl"

namespace cpu::ISA {
namespace {

constexpr int kTileVecs = 2;
constexpr int kTileColumns = kTileVecs * LANES;
constexpr int kTileRows = VECTORS == 32 ? 12 : VECTORS == 16 && LANES > 4 ? 6 : 4;
constexpr int64_t kDepth = 256;                                   // of k at a time: a strip of b stays in L1
constexpr int64_t kColumns = 1024 / kTileColumns * kTileColumns;  // of b at a time: the block stays in L2
constexpr int64_t kRows = 16 * kTileRows;                         // of a at a time
constexpr int64_t kResultRows = 4 * kRows;                        // whose sums are buffered in float32
constexpr size_t kMatmulWorkspace =
    sizeof(float) * (kDepth * kColumns + kRows * kDepth + kResultRows * kColumns);

// The source of panels of b: columns [j, j + n) of rows [p, p + depth), as strips of kTileColumns columns.
// The last strip is padded with zeros.
struct Panels {
  void (*unpack)(float* to, const Panels& from, int64_t p, int64_t depth, int64_t j, int64_t n);
  const void* b;
  int64_t stride, k;                                                    // of its rows, or of a weight's
  void (*floats)(float* to, const char* row, int64_t from, int64_t n);  // of a weight's row
};

// of b (k, n) as stored
template <class T>
void unpack_b(float* to, const Panels& from_, int64_t p0, int64_t depth, int64_t j0, int64_t n) {
  const int64_t stride = from_.stride;
  const T* const b = static_cast<const T*>(from_.b) + p0 * stride + j0;
  for (int64_t j = 0; j < n; j += kTileColumns) {
    const int64_t width = n - j < kTileColumns ? n - j : kTileColumns;
    for (int64_t p = 0; p < depth; ++p, to += kTileColumns) {
      const T* from = b + p * stride + j;
      if (width == kTileColumns) {
        for (int v = 0; v < kTileVecs; ++v) store(to + v * LANES, load(from + v * LANES));
      } else {
        for (int v = 0; v < kTileVecs; ++v) store(to + v * LANES, Vec{});
        map(to, width, Identity{}, from);
      }
    }
  }
}

// to[d * stride + r] = rows[r][d] for r < n. A store may write past its rows; a later store overwrites that.
INLINE void store_transposed(float* to, int64_t stride, const float (*rows)[kDepth], int n, int64_t depth) {
  for (int64_t q = 0; q < depth; q += LANES) {
    Vec square[LANES];
    for (int r = 0; r < LANES; ++r) square[r] = load(rows[r] + q);
    transpose<LANES>(square);
    for (int64_t d = q; d < q + LANES && d < depth; ++d)
      store(to + d * stride, square[d - q], (depth - d) * stride < LANES ? n : LANES);
  }
}

// of a weight (n, k) whose rows are the columns of b
inline void unpack_weight(float* to, const Panels& from, int64_t p, int64_t depth, int64_t j, int64_t n) {
  alignas(64) float rows[LANES][kDepth];
  const char* row = static_cast<const char*>(from.b) + j * from.stride;
  for (int64_t i = 0; i < n; i += kTileColumns, to += kTileColumns * depth)
    for (int v = 0; v < kTileVecs; ++v) {
      for (int64_t r = 0; r < LANES; ++r, row += from.stride)
        if (i + v * LANES + r < n)
          from.floats(rows[r], row, p, depth);
        else
          __builtin_memset(rows[r], 0, sizeof rows[r]);
      store_transposed(to + v * LANES, kTileColumns, rows, LANES, depth);
    }
}

// n elements of bfloat16 -> depth pairs
INLINE void pair_up(float* to, const void* from, int64_t n, int64_t depth) {
  if (n < 2 * depth) to[depth - 1] = 0.f;
  __builtin_memcpy(to, from, sizeof(BFloat16) * (n < 2 * depth ? n : 2 * depth));
}

// rows [0, m) of a (m, k), `depth` columns -> strips of kTileRows rows, the last one padded with zeros
template <int kPer, class T>
inline void unpack_a(float* to, const T* a, int64_t stride, int64_t m, int64_t k, int64_t depth) {
  static_assert(kTileRows <= LANES || kTileRows % LANES == 0,
                "store_transposed() would write over a group before it");
  alignas(64) float rows[LANES][kDepth] = {};
  for (int64_t i = 0; i < m; i += kTileRows, to += kTileRows * depth)
    for (int s = 0; s < kTileRows; s += LANES) {
      const int n = kTileRows - s < LANES ? kTileRows - s : LANES;
      for (int r = 0; r < n; ++r) {
        const T* const row = a + (i + s + r) * stride;
        if (i + s + r >= m)
          __builtin_memset(rows[r], 0, sizeof rows[r]);
        else if constexpr (kPer == 2)
          pair_up(rows[r], row, k, depth);
        else
          map(rows[r], depth, Identity{}, row);
      }
      store_transposed(to + s, kTileRows, rows, n, depth);
    }
}

template <int kPer>
INLINE Vec plus_product(Vec sum, float a, Vec b) {
#ifdef DOT_BF16
  if constexpr (kPer == 2) return DOT_BF16(sum, (Vec)(Vec{} + a), b);
#endif
  return sum + a * b;
}

// Adds to the sums of a block, or writes them if `first`. The earlier sums are prefetched while a tile is
// multiplied.
template <int kPer>
inline void tile(float* result, int64_t stride, bool first, const float* a, const float* b, int64_t depth) {
  for (int r = 0; r < kTileRows; ++r)
    for (int v = 0; v < kTileVecs; ++v) __builtin_prefetch(result + r * stride + v * LANES, 1);
  Vec sum[kTileRows][kTileVecs] = {};
  for (int64_t p = 0; p < depth; ++p, a += kTileRows, b += kTileColumns) {
    Vec column[kTileVecs];
    for (int v = 0; v < kTileVecs; ++v) column[v] = load(b + v * LANES);
    for (int r = 0; r < kTileRows; ++r)
      for (int v = 0; v < kTileVecs; ++v) sum[r][v] = plus_product<kPer>(sum[r][v], a[r], column[v]);
  }
  for (int r = 0; r < kTileRows; ++r)
    for (int v = 0; v < kTileVecs; ++v) {
      float* const to = result + r * stride + v * LANES;
      store(to, first ? sum[r][v] : load(to) + sum[r][v]);
    }
}

// Sums (rows, columns) of a block, float32. Tiles may extend past them.
struct Sums {
  float* at;
  int64_t stride, rows, columns;
};

template <int kPer>
inline void tile_at(const Sums& sums, int64_t i, int64_t j, bool first, const float* a, const float* b,
                    int64_t depth) {
  float* const to = sums.at + i * sums.stride + j;
  if (i + kTileRows <= sums.rows && j + kTileColumns <= sums.columns)
    return tile<kPer>(to, sums.stride, first, a, b, depth);
  alignas(64) float whole[kTileRows * kTileColumns];
  tile<kPer>(whole, kTileColumns, true, a, b, depth);
  for (int64_t r = 0; r < smaller(kTileRows, sums.rows - i); ++r)
    for (int64_t c = 0, n; (n = smaller(smaller(kTileColumns, sums.columns - j) - c, LANES)) > 0;
         c += LANES) {
      float* const part = to + r * sums.stride + c;
      const Vec sum = load(whole + r * kTileColumns + c);
      store(part, first ? sum : load(part, n) + sum, n);
    }
}

// One block of the result: rows m <= kResultRows, columns n <= kColumns, all of k.
template <int kPer, class T>
inline void block(const Sums& sums, const T* a, const Panels& b, const MatmulPart& all, int64_t m, int64_t j0,
                  int64_t n, float* workspace) {
  float* unpacked_b = workspace;
  float* unpacked_a = unpacked_b + kDepth * kColumns;
  const int64_t elements = (all.k + kPer - 1) / kPer;
  for (int64_t p = 0; p < elements; p += kDepth) {
    const int64_t depth = elements - p < kDepth ? elements - p : kDepth;
    b.unpack(unpacked_b, b, p, depth, j0, n);
    for (int64_t i = 0; i < m; i += kRows) {
      const int64_t rows = m - i < kRows ? m - i : kRows;
      unpack_a<kPer>(unpacked_a, a + i * all.k + p * kPer, all.k, rows, all.k - p * kPer, depth);
      for (int64_t j = 0; j < n; j += kTileColumns)
        for (int64_t r = 0; r < rows; r += kTileRows)
          tile_at<kPer>(sums, i + r, j, p == 0, unpacked_a + r * depth, unpacked_b + j * depth, depth);
    }
  }
}

// The sums of a float32 result are computed in place; other dtypes are summed in the workspace.
template <class T, int kPer = 1>
void multiply(void* out, const void* a, const Panels& b, const MatmulPart& part, float* workspace) {
  constexpr bool kInPlace = sizeof(T) == sizeof(float);
  float* const waiting = workspace + kDepth * kColumns + kRows * kDepth;
  for (int64_t j = part.n0; j < part.n1; j += kColumns)
    for (int64_t i = part.m0; i < part.m1; i += kResultRows) {
      const int64_t n = part.n1 - j < kColumns ? part.n1 - j : kColumns;
      const int64_t m = part.m1 - i < kResultRows ? part.m1 - i : kResultRows;
      T* const to = static_cast<T*>(out) + i * part.n + j;
      Sums sums{waiting, kColumns, kResultRows, kColumns};
      if constexpr (kInPlace) sums = {to, part.n, m, n};
      block<kPer>(sums, static_cast<const T*>(a) + i * part.k, b, part, m, j, n, workspace);
      if constexpr (!kInPlace)
        for (int64_t r = 0; r < m; ++r) map(to + r * part.n, n, Identity{}, waiting + r * kColumns);
    }
}

template <class T>
void matmul(void* out, const void* a, const void* b, const MatmulPart& part, float* workspace) {
  multiply<T>(out, a, {unpack_b<T>, b, part.n, part.k, nullptr}, part, workspace);
}

#ifdef DOT_BF16
INLINE Vec load_up_to(const BFloat16* p, int64_t n) {
  return n >= LANES ? load(p) : n > 0 ? load(p, n) : Vec{};
}

void unpack_pairs(float* to, const Panels& from, int64_t p, int64_t depth, int64_t j0, int64_t n) {
  const BFloat16* const b = static_cast<const BFloat16*>(from.b) + j0;
  for (int64_t j = 0; j < n; j += kTileColumns)
    for (int64_t q = 2 * p; q < 2 * (p + depth); q += 2)
      for (int v = 0; v < kTileVecs; ++v, to += LANES) {
        const int64_t width = n - j - v * LANES;
        const BFloat16* const row = b + q * from.stride + j + v * LANES;
        const Vec upper = q + 1 < from.k ? load_up_to(row + from.stride, width) : Vec{};
        store(to, (Vec)((Bits)load_up_to(row, width) >> 16 | (Bits)upper));
      }
}

void matmul_pairs(void* out, const void* a, const void* b, const MatmulPart& part, float* workspace) {
  multiply<BFloat16, 2>(out, a, {unpack_pairs, b, part.n, part.k, nullptr}, part, workspace);
}

void pairs_of_row(float* to, const char* row, int64_t from, int64_t depth) {
  __builtin_memcpy(to, row + 4 * from, 4 * depth);
}

// For a weight in bfloat16 too. The odd last element of a row has no second element to read.
void pair_product(Format name, void* out, const void* x, const char* weight, const PrefillPart& part,
                  float* workspace) {
  if (name != kBF16 || part.k % 2)
    return BASE::kernels.prefill.float_product[kBFloat16](name, out, x, weight, part, workspace);
  multiply<BFloat16, 2>(out, x, {unpack_weight, weight, 2 * part.k, part.k, pairs_of_row},
                        {part.n, part.k, 0, part.m, part.n0, part.n1}, workspace);
}
#endif

}  // namespace
}  // namespace cpu::ISA

#endif
