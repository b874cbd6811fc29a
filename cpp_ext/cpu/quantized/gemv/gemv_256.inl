// Products of one to three rows of x with blocks of 256 values ("K", blocks_256.inl). The bytes with the low
// bits of q are read as stored, kFields fields of each, and x is packed in that order. The products of a
// block are summed as integers, for LANES rows of weights, whose sums become the lanes of one vector.
// panels_256.inl multiplies several rows of x and adds the sums of blocks in the same order, so that a result
// has the same bits.
#ifndef AIRLLM_GEMV_256_INL
#define AIRLLM_GEMV_256_INL
#include "../../simd/lane_reductions.inl"
#include "../../simd/transpose.inl"
#include "../blocks/blocks_256.inl"
#include "operands.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// A block of x: its values in the order of a format's fields, the sums of each sub-block in the order of
// sub-blocks, and its scale.
struct Group256 {
  int8_t values[256];
  int16_t sums[16];
  float scale, unused[7];
};

// For each place of 16 values in the order of F's fields: its unit, the number of its sub-block, and for each
// pair of values the bytes of its scale, among eight.
template <class F>
struct Order {
  int8_t unit[16] = {}, sub_block[16] = {};
  alignas(64) int8_t pairs[16 * 16] = {};
  constexpr Order() {
    for (int place = 0; place < 16; ++place) {
      const int vector = place / kGroup, piece = place % kGroup;
      unit[place] =
          static_cast<int8_t>(F::unit(vector / F::kFields * kStep + 16 * piece, vector % F::kFields));
      sub_block[place] = static_cast<int8_t>(unit[place] * 16 / F::kUnit);
      for (int i = 0; i < 16; ++i)
        pairs[16 * place + i] = static_cast<int8_t>(sub_block[place] % 8 * 2 + i % 2);
    }
  }
};
template <class F>
constexpr Order<F> order;

template <class F>
inline bool pack_block256(Group256* group, const float* x, float* largest, float* error) {
  Vec size = Vec{};
  Int finite = Int{} - 1;
  for (int i = 0; i < 256; i += LANES) {
    const Vec magnitude = (Vec)((Bits)load(x + i) & 0x7fffffffu);
    finite &= magnitude < __builtin_inff();
    size = Max{}(size, magnitude);
  }
  if (across((Vec)(finite & 0x3f800000), Least{}) == 0.f) return false;
  const float most = across(size, Max{});
  *largest = most > *largest ? most : *largest;
  const bool tiny = most < 0x1p-119f;
  const float inverse = tiny ? 0.f : 127.f / most;
  group->scale = tiny ? 0.f : most / 127.f;
  for (int16_t& sum : group->sums) sum = 0;
  for (int place = 0; place < 16; ++place) {
    const int from = 16 * order<F>.unit[place];
    Int sum = Int{};
    for (int i = 0; i < 16; i += LANES) {
      const Vec each = load(x + from + i), rounded = each * inverse + kRound;
      const Int whole = (Int)rounded - (int32_t)0x4b400000;
      if (error) store(error + from + i, each - (rounded - kRound) * group->scale);
      *reinterpret_cast<LanesOfBytesInMemory*>(group->values + 16 * place + i) = low_bytes(whole);
      sum += whole;
    }
    group->sums[order<F>.sub_block[place]] += static_cast<int16_t>(across(to_float(sum), Plus{}));
  }
  return true;
}

// Multiplies the words of sub-blocks by the sums of x and adds the products.
template <int kWords>
INLINE FourInts multiply_with_sums(const EightWords (&words)[kWords], const int16_t* sums) {
  FourInts all = FourInts{};
  for (int i = 0; i < kWords; ++i) all += fours_of_words(words[i], load_words(sums + 8 * i));
  return all;
}

#ifdef PAIRS_U8_I8
// The scales for the fields of the v-th vector, for each 16 bytes of it.
template <class F>
INLINE Shorts scales_of_vector(const SubBlocks<F::kUnit>& sub, int v) {
  const int first = F::unit(v * kStep, 0) * 16 / F::kUnit / 8,
            second = F::unit(v * kStep + kStep / 2, 0) * 16 / F::kUnit / 8;
  return first == second ? in_all_pieces(sub.scales[first])
                         : in_half_of_pieces(sub.scales[first], sub.scales[second]);
}
// The scales of one field.
template <class F>
INLINE Shorts scales_of_field(Shorts scales, int vector) {
  return words_of_pieces(scales, order<F>.pairs + vector * kStep);
}
template <class F>
INLINE Pairs pairs_of_codes(Bytes codes, Bytes x) {
  return F::kSigned ? PAIRS_I8_I8(codes, x) : PAIRS_U8_I8(codes, x);
}
template <class F>
INLINE Int add_scaled_dot(Int sum, Bytes codes, Bytes x, Shorts scales) {
  const Pairs pairs = pairs_of_codes<F>(codes, x);
#ifdef ADD_SUMS_OF_PAIRS
  return ADD_SUMS_OF_PAIRS(sum, pairs, scales);
#else
  return sum + SUMS_OF_PAIRS(pairs, scales);
#endif
}
#else
template <class F>
INLINE const SubBlocks<F::kUnit>& scales_of_vector(const SubBlocks<F::kUnit>& sub, int) {
  return sub;
}
template <class F>
INLINE Int scales_of_field(const SubBlocks<F::kUnit>& sub, int vector) {
  Int found;
  for (int i = 0; i < LANES; ++i) {
    const int number = order<F>.sub_block[vector * kGroup + i / 4];
    found[i] = sub.scales[number / 8][number % 8];
  }
  return found;
}
template <class F>
INLINE Int add_scaled_dot(Int sum, Bytes codes, Bytes x, Int scales) {
  return sum + (F::kSigned ? dot_signed(Int{}, codes, x) : dot_small(Int{}, codes, x)) * scales;
}
#endif

// The products of a block's codes of 0 to 2 with x, which have one scale. Those of all its bytes fit 16 bits.
struct PlainSum {
#if defined(PAIRS_U8_I8) && !defined(DOT_U8_I8)
  Pairs pairs = {};
  INLINE void add(Bytes codes, Bytes x) { pairs += PAIRS_U8_I8(codes, x); }
  INLINE Int all() const { return FOURS_OF_PAIRS(pairs); }
#else
  Int sum = {};
  INLINE void add(Bytes codes, Bytes x) { sum = dot_small(sum, codes, x); }
  INLINE Int all() const { return sum; }
#endif
};

// The products of a block of a row with x, as integers: what the lanes of `sum` add up to is multiplied by
// the block's scale, and those of `offset` by its offset scale.
struct BlockSums {
  Int sum;
  FourInts offset;
};

// Whether a block's products need its sums of x, times the scales.
template <class F>
constexpr bool kHasZero = F::kZero && !F::kSigned;

// all[m]: with row m of x
template <class F, int M, class Reader>
INLINE void multiply_block(BlockSums (&all)[M], const char* w, const Reader& codes,
                           const Group256* const (&x)[M]) {
  const SubBlocks<F::kUnit> sub = F::sub_blocks(w);
  Int sum[M] = {};
  PlainSum plain[M];
#pragma GCC unroll 16  // the places of bits and scales must be constants
  for (int v = 0; v < 256 / kStep / F::kFields; ++v) {
    const auto scales = scales_of_vector<F>(sub, v);
#pragma GCC unroll 4
    for (int vector = v * F::kFields; vector < (v + 1) * F::kFields; ++vector) {
      const Bytes q = codes.vector(vector);
      const auto of_field = scales_of_field<F>(scales, vector);
      for (int m = 0; m < M; ++m) {
        Bytes each = load_bytes(x[m]->values + vector * kStep);
        if constexpr (F::kNegatesX) each = codes.with_signs(vector, each);
        if constexpr (F::kHasOneScale)
          plain[m].add(q, each);
        else
          sum[m] = add_scaled_dot<F>(sum[m], q, each, of_field);
      }
    }
  }
  for (int m = 0; m < M; ++m) {
    if (F::kHasOneScale) sum[m] = plain[m].all();
    if (kHasZero<F>) sum[m] -= in_first_lanes(multiply_with_sums(sub.scales, x[m]->sums) * F::kZero);
    all[m].sum = sum[m];
    if (F::kOffset) all[m].offset = multiply_with_sums(sub.offsets, x[m]->sums);
  }
}

// A block of each of two rows, whose codes some formats look up together.
template <class F, int M>
INLINE void multiply_two(BlockSums (&first)[M], BlockSums (&second)[M], const char* w, const char* other,
                         const Group256* const (&x)[M]) {
  if constexpr (F::kInTwos) {
    const typename F::Readers codes(w, other);
    multiply_block<F>(first, w, codes.first, x);
    multiply_block<F>(second, other, codes.second, x);
  } else {
    multiply_block<F>(first, w, typename F::Reader(w), x);
    multiply_block<F>(second, other, typename F::Reader(other), x);
  }
}

// total += the block of LANES rows at w with one of x. The scales are a vector.
template <class F>
INLINE Vec add_block_sums(Vec total, float x, Vec scale, Int sum, Vec offset_scale, Int offset) {
  total += x * (scale * to_float(sum));
  if (F::kOffset) total -= x * (offset_scale * to_float(offset));
  return total;
}

// The sums of the lanes of four vectors.
INLINE FourInts sums_of_four(FourInts a, FourInts b, FourInts c, FourInts d) {
  FourInts rows[4] = {a, b, c, d};
  transpose<4>(rows);
  return rows[0] + rows[1] + (rows[2] + rows[3]);
}
template <int... I>
INLINE FourInts fold(Int v, std::integer_sequence<int, I...>) {
  FourInts pieces[LANES / 4];
  __builtin_memcpy(pieces, &v, sizeof v);
  return (pieces[I] + ...);
}
INLINE FourInts fold(Int v) { return fold(v, std::make_integer_sequence<int, LANES / 4>{}); }

// What blocks of LANES rows of weights give with M rows of x, a row of weights in each lane.
constexpr int kBlocksAtOnce = 64;
template <int M>
struct RowSums {
  alignas(64) int32_t sums[kBlocksAtOnce][M][LANES];
  int32_t offsets[kBlocksAtOnce][M][LANES];
  float scales[kBlocksAtOnce][LANES], offset_scales[kBlocksAtOnce][LANES];
};

// A block of four rows -> four lanes. A loop over the rows would keep their sums in memory.
template <class F, int M, int... I>
INLINE void multiply_four_rows(RowSums<M>* to, int64_t b, int lane, const char* const (&w)[4],
                               const Group256* const (&x)[M], std::integer_sequence<int, I...>) {
  const int64_t at = b * F::kBytes;
  BlockSums rows[4][M];
  multiply_two<F>(rows[0], rows[1], w[0] + at, w[1] + at, x);
  multiply_two<F>(rows[2], rows[3], w[2] + at, w[3] + at, x);
  for (int m = 0; m < M; ++m) {
    const FourInts sums = sums_of_four(fold(rows[I][m].sum)...);
    __builtin_memcpy(to->sums[b][m] + lane, &sums, 16);
    if constexpr (F::kOffset) {
      const FourInts offsets = sums_of_four(rows[I][m].offset...);
      __builtin_memcpy(to->offsets[b][m] + lane, &offsets, 16);
    }
  }
  for (int r = 0; r < 4; ++r) {
    to->scales[b][lane + r] = F::block_scale(w[r] + at);
    if constexpr (F::kOffset) to->offset_scales[b][lane + r] = half_at(w[r] + at + F::kOffsetScale);
  }
}

template <class F, int M>
INLINE void add_sums(Vec (&total)[M], const RowSums<M>& of, const Group256* const (&x)[M], int64_t blocks) {
  for (int64_t b = 0; b < blocks; ++b) {
    const Vec scale = load(of.scales[b]), offset_scale = F::kOffset ? load(of.offset_scales[b]) : Vec{};
    for (int m = 0; m < M; ++m)
      total[m] = add_block_sums<F>(total[m], x[m][b].scale, scale, load_int(of.sums[b][m]), offset_scale,
                                   F::kOffset ? load_int(of.offsets[b][m]) : Int{});
  }
}

inline int64_t packed_bytes256(int64_t k) { return k / 256 * static_cast<int64_t>(sizeof(Group256)); }

template <class F>
bool pack256(char* to, const float* x, int64_t k, float* error) {
  float largest = 0.f;
  Group256* group = reinterpret_cast<Group256*>(to);
  for (int64_t i = 0; i < k; i += 256, ++group)
    if (!pack_block256<F>(group, x + i, &largest, error ? error + i : nullptr)) return false;
  return largest == 0.f || largest > 0x1p-60f;
}

// The addresses of LANES rows of a weight from row n on; past the last row it is repeated.
INLINE void set_rows(const char* (&w)[LANES], const LinearPart& part, int64_t n) {
  const int64_t row = row_bytes(part.format, part.k);
  for (int r = 0; r < LANES; ++r) w[r] = part.weight + smaller(n + r, part.n1 - 1) * row;
}

// Stores `rows` <= kTile results of row m of x for each of four streams of `each` columns.
INLINE void store_streams(const LinearPart& part, int64_t m, int64_t first, int64_t each, int64_t rows,
                          const float (&totals)[4][kTile]) {
  for (int r = 0; r < 4; ++r) {
    const int64_t n = part.n0 + r * each + first, here = smaller(rows, part.n1 - n);
    if (here <= 0) return;
    store_results(part.out_dtype, part.out, m * part.n + n, here, totals[r],
                  part.bias ? part.bias + n : nullptr);
  }
}

// Rows `first` to first + LANES / 4 - 1 of four streams of `each` rows, in LANES lanes: lane l has row l / 4
// of stream l % 4.
template <class F, int M>
INLINE void multiply_streams(Vec (&total)[M], const LinearPart& part, int64_t first, int64_t each) {
  const int64_t row = row_bytes(part.format, part.k);
  for (int64_t b = 0; b < part.k / 256; b += kBlocksAtOnce) {
    const Group256* x[M];
    for (int m = 0; m < M; ++m) x[m] = reinterpret_cast<const Group256*>(part.x + m * part.x_bytes) + b;
    const int64_t blocks = smaller(kBlocksAtOnce, part.k / 256 - b);
    RowSums<M> sums;
    for (int lane = 0; lane < LANES; lane += 4) {
      const char* w[4];
      for (int r = 0; r < 4; ++r)
        w[r] =
            part.weight + smaller(part.n0 + r * each + first + lane / 4, part.n1 - 1) * row + b * F::kBytes;
      const Group256* at[M];
      for (int m = 0; m < M; ++m) at[m] = x[m];
      for (int64_t i = 0; i < blocks; ++i) {
        multiply_four_rows<F>(&sums, i, lane, w, at, std::make_integer_sequence<int, 4>{});
        for (int m = 0; m < M; ++m) ++at[m];
      }
    }
    add_sums<F>(total, sums, x, blocks);
  }
}

// M packed rows of x. Reads the weights as four sequential streams: memory is fastest if each thread reads a
// few long streams.
template <class F, int M>
void few_rows256(const LinearPart& part) {
  constexpr int kRows = LANES / 4;
  const int64_t each = (part.n1 - part.n0 + 3) / 4;
  for (int64_t first = 0; first < each; first += kTile) {
    float totals[M][4][kTile];
    const int64_t rows = smaller(each - first, kTile);
    for (int64_t j = 0; j < rows; j += kRows) {
      Vec sums[M] = {};
      multiply_streams<F>(sums, part, first + j, each);
      if (part.with_rounding_error) sums[0] += sums[M - 1];  // of one row and its rounding error
      for (int m = 0; m < M; ++m)
        for (int lane = 0; lane < LANES; ++lane) totals[m][lane % 4][j + lane / 4] = sums[m][lane];
    }
    for (int64_t m = 0; m < part.m; ++m) store_streams(part, m, first, each, rows, totals[m]);
  }
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
