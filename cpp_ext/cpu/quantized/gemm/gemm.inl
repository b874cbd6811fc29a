// Products of many rows with stored weights; gemm.h describes each kernel.
//
// The byte kernel keeps a tile of kByteRows rows and kByteVecs vectors of columns in registers: integer sums
// of products within a group of values that share a scale, and float32 sums over all groups. Both operands
// are stored in the order in which it reads them, in chunks of 32 of k:
//   rows (a strip)       codes [8][kByteRows] of four bytes, or for products of pairs [4][kByteRows] of
//                        eight, or widened; scales [kByteRows]; for each group and row the initial sum,
//                        -offset * (sum of the codes), or, for a format with minima, the sum by which the
//                        minimum is multiplied
//   columns (a panel)    codes as of rows, [8], [4] or widened, of kByteColumns; for each group scales, then
//                        minima
// Widened codes are [16] of two words: the first and the third byte of four, then the second and the fourth.
#ifndef AIRLLM_GEMM_INL
#define AIRLLM_GEMM_INL
#include "../../simd/matrix_products.inl"
#include "../../simd/transpose.inl"
#include "../blocks/blocks_256.inl"
#include "../blocks/blocks_32.inl"
#include "../blocks/blocks_codebook.inl"
#include "../interleaved/interleaved.inl"
#include "gemm.h"

namespace cpu::ISA {
namespace {

#if defined(DOT_U8_I8)
#define DOT_OF_CODES DOT_U8_I8
#elif defined(DOTS_AT_ONCE)
#define DOT_OF_CODES DOT_I8_I8
#endif
#if defined(DOT_OF_CODES) || defined(PAIRS_U8_I8)
#define BY_BYTES
#endif

#ifdef BY_BYTES
constexpr int kByteRows = VECTORS == 32 ? 6 : 3, kByteVecs = 2, kByteColumns = kByteVecs * LANES;

typedef int8_t LaneBytes __attribute__((vector_size(LANES)));
typedef int8_t LaneBytesInMemory __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int32_t IntInMemory __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t EightInts __attribute__((vector_size(32)));
typedef int32_t EightIntsInMemory __attribute__((vector_size(32), aligned(4), may_alias));

INLINE Int load(const int32_t* p) { return *reinterpret_cast<const IntInMemory*>(p); }
INLINE float as_float(int32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
INLINE int32_t as_bits(float value) {
  int32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

constexpr int kSignedCodes = 128;  // as kLargest: the code is signed, or was before kSignedZero was added

// Without dot products of bytes, signed codes are widened: bytes would need two more instructions, for their
// signs.
#ifdef DOT_OF_CODES
constexpr int words_of_chunk(int) { return 8; }
#else
constexpr int words_of_chunk(int largest) { return largest == kSignedCodes ? 16 : 8; }
#endif
constexpr int chunk_of_strip(int groups, int words = 8) { return kByteRows * (words + 1 + groups); }
constexpr int chunk_of_panel(int groups, bool mins, int words = 8) {
  return kByteColumns * (words + groups * (1 + mins));
}

// Fours of signed bytes as two steps of a panel.
template <class V>
INLINE void store_widened(int32_t* to, V fours) {
  typedef int16_t Words __attribute__((vector_size(sizeof(V))));
  typedef uint16_t Unsigned __attribute__((vector_size(sizeof(V))));
  const V steps[2] = {(V)((Words)((Unsigned)fours << 8) >> 8), (V)((Words)fours >> 8)};
  __builtin_memcpy(to, &steps[0], sizeof(V));
  __builtin_memcpy(to + kByteColumns, &steps[1], sizeof(V));
}

// sum[r][v] += products of kGroup codes of each row and column
template <int kGroup, int kLargest>
INLINE void add_products(Int (&sum)[kByteRows][kByteVecs], const int32_t* x, const int32_t* w) {
#ifdef PRODUCTS_OF_PAIRS
  SumsOfPairs sums[kByteRows / 2][kByteVecs];
  for (int r = 0; r < kByteRows; r += 2)
    for (int v = 0; v < kByteVecs; ++v) sums[r / 2][v] = sums_of_pairs_from(sum[r][v], sum[r + 1][v]);
  for (int s = 0; s < kGroup / 4; s += 2)
    for (int v = 0; v < kByteVecs; ++v) {
      const int32_t* const columns = w + s * kByteColumns + v * 2 * LANES;
      for (int r = 0; r < kByteRows; r += 2)
        sums[r / 2][v].add(load(x + s * kByteRows + r * 2), load(columns), load(columns + LANES));
    }
  for (int r = 0; r < kByteRows; ++r)
    for (int v = 0; v < kByteVecs; ++v) sum[r][v] = sums[r / 2][v].row(r % 2);
#elif defined(DOT_OF_CODES)
  for (int s = 0; s < kGroup / 4; ++s)
    for (int v = 0; v < kByteVecs; ++v) {
      const Int codes = load(w + s * kByteColumns + v * LANES);
      for (int r = 0; r < kByteRows; ++r)
        sum[r][v] = DOT_OF_CODES(sum[r][v], codes, Int{} + x[s * kByteRows + r]);
    }
#else
  if constexpr (kLargest == kSignedCodes) {
#pragma GCC unroll 16
    for (int s = 0; s < kGroup / 2; ++s)
      for (int v = 0; v < kByteVecs; ++v) {
        const Int codes = load(w + s * kByteColumns + v * LANES);
        for (int r = 0; r < kByteRows; ++r) {
          sum[r][v] += SUMS_OF_PAIRS(codes, Int{} + x[s * kByteRows + r]);
          stored::keep_in_register(sum[r][v]);
        }
      }
    return;
  }
  // The number of pair sums, 16 bits wide, that can be added without overflow.
  constexpr int kFit = 32767 / (2 * 127 * kLargest);
  constexpr int kChain = kFit < kGroup / 4 ? kFit >= 4 ? 4 : kFit : kGroup / 4;
  for (int s = 0; s < kGroup / 4; s += kChain) {
    Pairs pairs[kByteRows][kByteVecs] = {};
    for (int t = s; t < s + kChain; ++t)
      for (int v = 0; v < kByteVecs; ++v) {
        const Int codes = load(w + t * kByteColumns + v * LANES);
        for (int r = 0; r < kByteRows; ++r) {
          const Int bytes = Int{} + x[t * kByteRows + r];
          pairs[r][v] += PAIRS_U8_I8(codes, bytes);
          stored::keep_in_register(pairs[r][v]);
        }
      }
    for (int r = 0; r < kByteRows; ++r)
      for (int v = 0; v < kByteVecs; ++v) sum[r][v] += FOURS_OF_PAIRS(pairs[r][v]);
  }
#endif
}

// result (kByteRows, kByteColumns) = a strip times a panel
template <int kGroup, int kLargest, bool kMins>
void byte_tile(float* result, const int32_t* x, const int32_t* w, int64_t chunks) {
  constexpr int kGroups = 32 / kGroup, kWords = words_of_chunk(kLargest);
  Vec total[kByteRows][kByteVecs] = {};
  for (; chunks--; x += chunk_of_strip(kGroups, kWords), w += chunk_of_panel(kGroups, kMins, kWords)) {
    const int32_t *const scale = x + kWords * kByteRows, *const extra = scale + kByteRows;
    const float* const scales = reinterpret_cast<const float*>(w + kWords * kByteColumns);
    for (int g = 0; g < kGroups; ++g) {
      Int sum[kByteRows][kByteVecs];
      for (int r = 0; r < kByteRows; ++r)
        for (int v = 0; v < kByteVecs; ++v) sum[r][v] = kMins ? Int{} : Int{} + extra[g * kByteRows + r];
      constexpr int kSteps = kWords / kGroups;
      add_products<kGroup, kLargest>(sum, x + g * kSteps * kByteRows, w + g * kSteps * kByteColumns);
      for (int v = 0; v < kByteVecs; ++v) {
        const Vec of_columns = load(scales + g * kByteColumns + v * LANES);
        for (int r = 0; r < kByteRows; ++r)
          total[r][v] += as_float(scale[r]) * (of_columns * __builtin_convertvector(sum[r][v], Vec));
        if (kMins) {
          const Vec mins = load(scales + (kGroups + g) * kByteColumns + v * LANES);
          for (int r = 0; r < kByteRows; ++r) total[r][v] += as_float(extra[g * kByteRows + r]) * mins;
        }
      }
    }
  }
  for (int r = 0; r < kByteRows; ++r)
    for (int v = 0; v < kByteVecs; ++v) store(result + r * kByteColumns + v * LANES, total[r][v]);
}

template <class F>
constexpr int kLargestOf = F::kSigned ? kSignedCodes : F::kLargest;
template <class F>
constexpr int kWordsOf = words_of_chunk(kLargestOf<F>);

// Chunk `c` of `n` <= 8 rows of a weight -> eight columns of a panel's chunk.
template <class F>
INLINE void unpack_eight(int32_t* to, const char* weight, int64_t stride, int64_t n, int64_t c) {
  constexpr int kPerBlock = F::kValues / 32, kGroups = 32 / F::kUnit;
  alignas(32) uint8_t codes[8][32];
  float* const scales = reinterpret_cast<float*>(to + kWordsOf<F> * kByteColumns);
  float* const mins = scales + kGroups * kByteColumns;
#pragma GCC unroll 1  // GCC would shuffle all eight at once, which is slower
  for (int i = 0; i < 8; ++i) {
    float scale[2] = {}, min[2] = {};
    if (i < n) {
      const auto* const block =
          reinterpret_cast<const uint8_t*>(weight) + i * stride + c / kPerBlock * F::kBytes;
      F::codes(codes[i], block, c % kPerBlock);
      F::scales(scale, min, block, c % kPerBlock);
    } else {
      __builtin_memset(codes[i], 0, 32);
    }
    for (int g = 0; g < kGroups; ++g) {
      scales[g * kByteColumns + i] = scale[g];
      if (F::kOffset) mins[g * kByteColumns + i] = min[g];
    }
  }
  if constexpr (kTogether == 2) {
    for (int i = 0; i < 8; ++i)
      for (int s = 0; s < 8; s += 2)
        __builtin_memcpy(to + place_of_step(s, i, kByteColumns), codes[i] + 4 * s, 8);
    return;
  }
  EightInts rows[8];
  for (int i = 0; i < 8; ++i) rows[i] = *reinterpret_cast<const EightIntsInMemory*>(codes[i]);
  transpose<8>(rows);
  for (int s = 0; s < 8; ++s)
    if (kWordsOf<F> == 16)
      store_widened(to + 2 * s * kByteColumns, rows[s]);
    else
      *reinterpret_cast<EightIntsInMemory*>(to + s * kByteColumns) = rows[s];
}

// n <= kByteColumns rows of a weight -> a panel; columns beyond n are zero
template <class F>
void unpack_panel(int32_t* to, const char* weight, int64_t stride, int64_t n, int64_t chunks) {
  static_assert(kTogether == 1 || kByteColumns == 8);  // or a word's place would depend on the column
  for (int64_t c = 0; c < chunks; ++c, to += chunk_of_panel(32 / F::kUnit, F::kOffset, kWordsOf<F>))
    for (int64_t j = 0; j < kByteColumns; j += 8)
      unpack_eight<F>(to + j, weight + j * stride, stride, n - j, c);
}

// LANES rows of an interleaved block -> columns [j, j + LANES) of a panel's chunk
template <class F>
INLINE void unpack_lanes(int32_t* to, int64_t j, const stored::BandBlock<F>& w) {
  for (int s = 0; s < 8; s += kTogether) {
    int32_t* const codes = to + s * kByteColumns + j * kTogether;
    const Int word = (Int)stored::codes_at(w, s);
#ifdef PRODUCTS_OF_PAIRS
    const Int next = (Int)stored::codes_at(w, s + 1);
    stored::store_int(codes, low_words_in_turn(word, next));
    stored::store_int(codes + LANES, high_words_in_turn(word, next));
#else
    if (kWordsOf<F> == 16)
      store_widened(to + 2 * s * kByteColumns + j, word);
    else
      stored::store_int(codes, word);
#endif
  }
  float* const scales = reinterpret_cast<float*>(to + kWordsOf<F> * kByteColumns) + j;
  store(scales, stored::scale_of_32(w));
  if constexpr (F::kOffset) store(scales + kByteColumns, w.half(1));
}
// n <= kByteColumns rows of an interleaved weight (., k) from `row` on, `chunks` chunks from `chunk` on -> a
// panel
template <class F>
void unpack_bands(int32_t* to, const char* weight, int64_t k, int64_t row, int64_t n, int64_t chunk,
                  int64_t chunks) {
  constexpr int kChunk = chunk_of_panel(1, F::kOffset, kWordsOf<F>);
  for (int64_t c = chunk; c < chunk + chunks; ++c, to += kChunk) {
    if (n < kByteColumns) __builtin_memset(to, 0, sizeof(int32_t) * kChunk);
    for (int64_t j = 0; j < n; j += LANES) unpack_lanes<F>(to, j, stored::block_at<F>(weight, k, row + j, c));
  }
}

struct ByBytes {
  void (*unpack)(int32_t* to, const char* weight, int64_t stride, int64_t n, int64_t chunks);
  void (*unpack_bands)(int32_t* to, const char* weight, int64_t k, int64_t row, int64_t n, int64_t chunk,
                       int64_t chunks);
  void (*tile)(float* result, const int32_t* x, const int32_t* w, int64_t chunks);
  int group, offset, words;
  bool mins;
  int strip_chunk() const { return chunk_of_strip(32 / group, words); }
  int panel_chunk() const { return chunk_of_panel(32 / group, mins, words); }
};

template <class F>
constexpr ByBytes by_bytes_of() {
  if constexpr (F::kValues != 32)
    return {};  // panels_256.inl multiplies any number of rows
  else
    return {unpack_panel<F>, unpack_bands<F>, byte_tile<F::kUnit, kLargestOf<F>, F::kOffset>,
            F::kUnit,        F::kZero,        kWordsOf<F>,
            F::kOffset};
}

constexpr ByBytes kByBytes[kFormats] = {{},
                                        {},
                                        {},
#define FORMAT(name, ...) by_bytes_of<stored::name>(),
                                        AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
};

struct Abs {
  INLINE Vec operator()(Vec v) const { return (Vec)((Bits)v & 0x7fffffffu); }
};
struct Nothing {  // 0 for a number, NaN for an infinity or a NaN
  INLINE Vec operator()(Vec v) const { return v * 0.f; }
};

// 32 values of a row -> codes, and the scale: NaN if one of the values is not finite
template <class T>
INLINE float byte_codes(int8_t* codes, const T* x) {
  const float largest = reduce(0.f, 32, Max{}, Abs{}, x), nothing = reduce(0.f, 32, Plus{}, Nothing{}, x);
  const float inverse = largest > 1e-36f ? 127.f / largest : 0.f;
  for (int i = 0; i < 32; i += LANES) {
    const Int rounded = (Int)(load(x + i) * inverse + kRound);  // the low byte is the integer
    *reinterpret_cast<LaneBytesInMemory*>(codes + i) = __builtin_convertvector(rounded, LaneBytes);
  }
  return largest * (1.f / 127.f) + nothing;
}

// A chunk of row r of a strip.
INLINE void put_fours(int32_t* strip, int r, const int8_t* codes) {
  int32_t fours[8];
  __builtin_memcpy(fours, codes, 32);
  for (int s = 0; s < 8; ++s) strip[place_of_step(s, r, kByteRows)] = fours[s];
}
INLINE int32_t two_words(int low, int high) { return (low & 0xffff) | high * 0x10000; }
INLINE void put_widened(int32_t* row, const int8_t* codes) {
  for (int s = 0; s < 8; ++s, row += 2 * kByteRows, codes += 4) {
    row[0] = two_words(codes[0], codes[2]);
    row[kByteRows] = two_words(codes[1], codes[3]);
  }
}

// Row r of a strip.
template <class T>
INLINE void quantize_row(const ByBytes& format, int32_t* strip, const T* x, int64_t chunks, int r) {
  const int groups = 32 / format.group;
  for (; chunks--; x += 32, strip += format.strip_chunk()) {
    alignas(32) int8_t codes[32];
    const float scale = byte_codes(codes, x);
    format.words == 16 ? put_widened(strip + r, codes) : put_fours(strip, r, codes);
    strip[format.words * kByteRows + r] = as_bits(scale);
    for (int g = 0; g < groups; ++g) {
      int32_t sum = 0;
      for (int i = 0; i < format.group; ++i) sum += codes[g * format.group + i];
      strip[(format.words + 1 + g) * kByteRows + r] =
          format.mins ? as_bits(scale * sum) : -format.offset * sum;
    }
  }
}

template <class T>
void quantize_strips(Format name, char* strips, const void* x, int64_t m, int64_t k, int64_t strip0,
                     int64_t strip1) {
  const ByBytes& format = kByBytes[name];
  const int64_t words = k / 32 * format.strip_chunk();
  for (int64_t i = strip0; i < strip1; ++i) {
    int32_t* const strip = reinterpret_cast<int32_t*>(strips) + i * words;
    for (int64_t r = 0; r < kByteRows; ++r) {
      const int64_t row = i * kByteRows + r;  // past the last row any row will do: its result is dropped
      quantize_row(format, strip, static_cast<const T*>(x) + (row < m ? row : m - 1) * k, k / 32, r);
    }
  }
}

int64_t strip_bytes(Format name, int64_t k) { return int64_t{4} * (k / 32) * kByBytes[name].strip_chunk(); }

int64_t panel_bytes(Format name, int64_t k) { return int64_t{4} * (k / 32) * kByBytes[name].panel_chunk(); }

INLINE void store_row(void* out, DType dtype, int64_t at, int64_t n, const float* row) {
  if (dtype == kFloat32)
    map(static_cast<float*>(out) + at, n, Identity{}, row);
  else if (dtype == kFloat16)
    map(static_cast<Float16*>(out) + at, n, Identity{}, row);
  else
    map(static_cast<BFloat16*>(out) + at, n, Identity{}, row);
}

void byte_product(Format name, void* out, DType dtype, const char* strips, const char* weight,
                  const PrefillPart& part, char* workspace) {
  const ByBytes& format = kByBytes[name];
  int32_t* const panel = reinterpret_cast<int32_t*>(workspace);
  const int64_t chunks = part.k / 32, stride = part.k / kBlocks[name].values * kBlocks[name].bytes;
  const int64_t words = chunks * format.strip_chunk();
  for (int64_t j = part.n0; j < part.n1; j += kByteColumns) {
    const int64_t n = part.n1 - j < kByteColumns ? part.n1 - j : kByteColumns;
    part.interleaved ? format.unpack_bands(panel, weight, part.k, j, n, 0, chunks)
                     : format.unpack(panel, weight + j * stride, stride, n, chunks);
    const int32_t* x = reinterpret_cast<const int32_t*>(strips);
    for (int64_t i = 0; i < part.m; i += kByteRows, x += words) {
      alignas(64) float result[kByteRows * kByteColumns];
      format.tile(result, x, panel, chunks);
      for (int64_t r = 0; r < kByteRows && i + r < part.m; ++r)
        store_row(out, dtype, (i + r) * part.n + j, n, result + r * kByteColumns);
    }
  }
}

bool by_bytes(Format name) { return kBlocks[name].values == 32; }

// `all` with this instruction set's byte kernels.
constexpr PrefillKernels with_bytes(PrefillKernels all) {
  all.rows = kByteRows;
  all.columns = kByteColumns;
  all.by_bytes = by_bytes;
  all.strip_bytes = strip_bytes;
  all.quantize[kFloat32] = quantize_strips<float>;
  all.quantize[kFloat16] = quantize_strips<Float16>;
  all.quantize[kBFloat16] = quantize_strips<BFloat16>;
  all.product = byte_product;
  all.workspace_bytes = panel_bytes;
  return all;
}
#else
constexpr PrefillKernels with_bytes(PrefillKernels all) { return all; }
#endif

}  // namespace
}  // namespace cpu::ISA

#endif
