// Products with blocks of 256 values ("K", blocks_256.inl). The bytes with the low bits of q are read as
// stored, kFields fields of each, and x is packed in that order. The products of a block are summed as
// integers.
#ifndef AIRLLM_GEMV_256_INL
#define AIRLLM_GEMV_256_INL
#include "../simd/lane_reductions.inl"
#include "blocks_256.inl"
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
INLINE Int add_scaled_dot(Int sum, Bytes q, Bytes x, Shorts scales) {
#ifdef ADD_SUMS_OF_PAIRS
  return ADD_SUMS_OF_PAIRS(sum, PAIRS_U8_I8(q, x), scales);
#else
  return sum + SUMS_OF_PAIRS(PAIRS_U8_I8(q, x), scales);
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
INLINE Int add_scaled_dot(Int sum, Bytes q, Bytes x, Int scales) {
  return sum + dot_small(Int{}, q, x) * scales;
}
#endif

// The sums for a row of weights and a row of x; those of a format's offsets are separate.
struct Sums256 {
  Vec sum;
  FourFloats offset;
};

template <class F, int M>
INLINE void add_block(Sums256 (&to)[M], const char* w, const Group256* const (&x)[M]) {
  const SubBlocks<F::kUnit> sub = F::sub_blocks(w);
  Int whole[M] = {};
  for (int v = 0; v < F::kLowBytes / kStep; ++v) {
    const Bytes low = load_bytes(w + F::kLow + v * kStep);
    const auto scales = scales_of_vector<F>(sub, v);
    for (int f = 0; f < F::kFields; ++f) {
      const int vector = v * F::kFields + f;
      const Bytes q = F::unpack(low, w, v, f);
      const auto of_field = scales_of_field<F>(scales, vector);
      for (int m = 0; m < M; ++m)
        whole[m] = add_scaled_dot(whole[m], q, load_bytes(x[m]->values + vector * kStep), of_field);
    }
  }
  const float scale = half_at(w + F::kScale);
  for (int m = 0; m < M; ++m) {
    if (F::kZero) whole[m] -= in_first_lanes(multiply_with_sums(sub.scales, x[m]->sums) * F::kZero);
    to[m].sum += to_float(whole[m]) * (scale * x[m]->scale);
    if (F::kOffset)
      to[m].offset += __builtin_convertvector(multiply_with_sums(sub.offsets, x[m]->sums), FourFloats) *
                      (half_at(w + F::kOffsetScale) * x[m]->scale);
  }
}

// Adds block b of each of R rows. A loop over the rows would keep its sums in memory.
template <class F, int R, int M, int... I>
INLINE void add_blocks(Sums256 (&to)[R][M], const char* const (&w)[R], int64_t b,
                       const Group256* const (&x)[M], std::integer_sequence<int, I...>) {
  (add_block<F, M>(to[I], w[I] + b * F::kBytes, x), ...);
}

template <class F>
struct Blocks256 {
  template <int M>
  static constexpr int kRows = kWeightRows<M>;

  static int64_t packed_bytes(int64_t k) { return k / 256 * static_cast<int64_t>(sizeof(Group256)); }

  static bool pack(char* to, const float* x, int64_t k, float* error) {
    float largest = 0.f;
    Group256* group = reinterpret_cast<Group256*>(to);
    for (int64_t i = 0; i < k; i += 256, ++group)
      if (!pack_block256<F>(group, x + i, &largest, error ? error + i : nullptr)) return false;
    return largest == 0.f || largest > 0x1p-60f;
  }

  template <int R, int M>
  static INLINE void dots(float (&out)[R][M], const Operands<R, M>& all) {
    Sums256 to[R][M] = {};
    const Group256* x[M];
    for (int m = 0; m < M; ++m) x[m] = reinterpret_cast<const Group256*>(all.x[m]);
    for (int64_t b = 0; b < all.k / 256; ++b) {
      add_blocks<F>(to, all.w, b, x, std::make_integer_sequence<int, R>{});
      for (int m = 0; m < M; ++m) ++x[m];
    }
    Vec sums[R][M];
    for (int r = 0; r < R; ++r)
      for (int m = 0; m < M; ++m)
        sums[r][m] = F::kOffset ? to[r][m].sum - in_first_lanes(to[r][m].offset) : to[r][m].sum;
    sums_across(out, sums);
  }
};

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
