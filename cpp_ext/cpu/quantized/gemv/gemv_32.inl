// Products with blocks of 32 values, blocks_32.inl. A format's offset is multiplied by the sum of the rounded
// x, not of x: the rounding error is then multiplied by w, which is centred on zero, and not by q, which is
// not.
// A group of blocks is multiplied at once, with four lanes per block: one vector holds values 0-15 of every
// block of the group, another holds values 16-31. The sums of four groups may be combined into one lane per
// block, LANES blocks in all, so that their scales are one vector. The blocks that remain in a row are
// separate groups.
#ifndef AIRLLM_GEMV_32_INL
#define AIRLLM_GEMV_32_INL
#include "../../simd/lane_reductions.inl"
#include "../blocks/blocks_32.inl"
#include "operands.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// A group of x: its values in the order of the weights.
struct Values32 {
  int8_t first[4 * LANES], second[4 * LANES];
};
// Adds, for each lane, its block's scale, minus the sum of its rounded values times the format's zero, and
// that sum times the scale.
struct Group32 {
  Values32 values;
  int32_t corrections[LANES];
  float scales[LANES], sums[LANES];
};
struct Groups32 {  // four groups, with a lane for each block
  Values32 values[4];
  int32_t corrections[LANES];
  float scales[LANES], sums[LANES];
};

// Whether this many blocks, the remainder of a row, are half a group.
constexpr bool kHasHalfGroups = kGroup == 4;
INLINE bool is_half_group(int64_t blocks) { return kHasHalfGroups && blocks == kGroup / 2; }

struct Larger {
  INLINE Int operator()(Int a, Int b) const { return a > b ? a : b; }
};

// Rounds one block of x to multiples of 1 / inverse and stores it at its place in a group. `error`, if not
// null, receives the rounding error.
INLINE void round_block(Values32* values, int place, const float* x, float scale, float inverse,
                        float* error) {
  for (int i = 0; i < 32; i += LANES) {
    const Vec from = load(x + i), whole = from * inverse + kRound;  // in the low bits
    int8_t* const to = i < 16 ? values->first + 16 * place + i : values->second + 16 * place + i - 16;
    *reinterpret_cast<LanesOfBytesInMemory*>(to) = low_bytes((Int)whole);
    if (error) store(error + i, from - (whole - kRound) * scale);
  }
}

INLINE Int sums_of_values(const Values32& values) {
  const Bytes ones = Bytes{} + (int8_t)1;
  return dot_small(dot_small(Int{}, ones, load_bytes(values.first)), ones, load_bytes(values.second));
}

// The rounding of some blocks, in LANES / kBlocks lanes for each: the scale and its inverse.
struct Rounding {
  Vec scales, inverses;
};

// The squared rounding error of each block, in steps.
template <int kBlocks>
INLINE Vec changes_by_rounding(const float* x, Vec inverses) {
  float each[LANES];
  store(each, inverses);
  Vec changes[kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    changes[b] = Vec{};
    for (int i = 0; i < 32; i += LANES) {
      const Vec steps = load(x + 32 * b + i) * each[b * (LANES / kBlocks)];
      const Vec change = steps - (steps + kRound - kRound);
      changes[b] += change * change;
    }
  }
  return reduce_lanes_of<kBlocks>(changes, Plus{});
}

// The number of steps that the largest value of each block becomes. Of four candidates it is the one with the
// least rounding error, which is a seventh below that of a constant 127, on average.
template <int kBlocks>
INLINE Vec best_steps(const float* x, Vec most) {
  Vec best = Vec{} + 127.f, least = changes_by_rounding<kBlocks>(x, best / most);
  for (float steps = 126.f; steps > 123.f; --steps) {
    const float step = 127.f / steps;
    const Vec change = changes_by_rounding<kBlocks>(x, steps / most) * (step * step);
    const auto better = change < least;
    least = better ? change : least;
    best = better ? Vec{} + steps : best;
  }
  return best;
}

// *worst: the bits of the largest magnitude so far.
template <int kBlocks>
INLINE Rounding rounding_of(const float* x, Int* worst) {
  Int sizes[kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    sizes[b] = Int{};
    for (int i = 0; i < 32; i += LANES) sizes[b] = Larger{}(sizes[b], (Int)load(x + 32 * b + i) & 0x7fffffff);
  }
  const Int bits = reduce_lanes_of<kBlocks>(sizes, Larger{});
  *worst = Larger{}(*worst, bits);
  const Vec most = (Vec)bits;
  const auto tiny = most < 0x1p-119f;  // steps / most would overflow
  const Vec steps = best_steps<kBlocks>(x, most);
  return {tiny ? Vec{} : most / steps, tiny ? Vec{} : steps / most};
}

// `group` returns the values of a group by its number.
template <int kBlocks, class Group>
INLINE void round_blocks(const Group& group, const float* x, const Rounding& by, float* error) {
  float scales[LANES], inverses[LANES];
  store(scales, by.scales);
  store(inverses, by.inverses);
  for (int b = 0; b < kBlocks; ++b) {
    const int lane = b * (LANES / kBlocks);
    round_block(group(b / kGroup), b % kGroup, x + 32 * b, scales[lane], inverses[lane],
                error ? error + 32 * b : nullptr);
  }
}

template <class Group>
INLINE void store_scales(Group* group, Vec scales, Int sums, int zero) {
  store_int(group->corrections, sums * -zero);
  store(group->scales, scales);
  store(group->sums, to_float(sums) * scales);
}

void pack_group(Group32* group, const float* x, int zero, Int* worst, float* error) {
  const Rounding by = rounding_of<kGroup>(x, worst);
  round_blocks<kGroup>([=](int) { return &group->values; }, x, by, error);
  store_scales(group, by.scales, sums_of_values(group->values), zero);
}

template <int... kNumber>
INLINE void store_scales_of_four(Group32* groups, Vec scales, int zero,
                                 std::integer_sequence<int, kNumber...>) {
  (store_scales(groups + kNumber, four_times<kNumber>(scales), sums_of_values(groups[kNumber].values), zero),
   ...);
}

void pack_four(Group32* groups, const float* x, int zero, Int* worst, float* error) {
  const Rounding by = rounding_of<LANES>(x, worst);
  round_blocks<LANES>([=](int g) { return &groups[g].values; }, x, by, error);
  store_scales_of_four(groups, by.scales, zero, std::make_integer_sequence<int, 4>{});
}

void pack_four(Groups32* groups, const float* x, int zero, Int* worst, float* error) {
  const Rounding by = rounding_of<LANES>(x, worst);
  round_blocks<LANES>([=](int g) { return groups->values + g; }, x, by, error);
  Int sums[4];
  for (int g = 0; g < 4; ++g) sums[g] = sums_of_values(groups->values[g]);
  store_scales(groups, in_order_of_sums(by.scales, Lanes{}), sums_of_blocks(sums), zero);
}

// Packs a row; blocks from `lone` on are in separate groups. The last group is a half group, or overlaps the
// one before it and has zeros in the overlap.
inline bool pack_row32(char* to, const float* x, int64_t k, int zero, int64_t lone, float* error) {
  const int64_t blocks = k / 32;
  const auto error_from = [=](int64_t b) { return error ? error + 32 * b : nullptr; };
  Int worst = Int{};
  int64_t b = 0;
  for (; b < lone; b += LANES, to += sizeof(Groups32))
    pack_four(reinterpret_cast<Groups32*>(to), x + 32 * b, zero, &worst, error_from(b));
  for (; b + LANES <= blocks; b += LANES, to += 4 * sizeof(Group32))
    pack_four(reinterpret_cast<Group32*>(to), x + 32 * b, zero, &worst, error_from(b));
  for (; b < blocks; b += kGroup, to += sizeof(Group32)) {
    float last[32 * kGroup] = {};
    const int64_t here = smaller(blocks - b, kGroup),
                  skipped = blocks < kGroup || is_half_group(here) ? 0 : kGroup - here;
    for (int64_t i = 0; i < 32 * here; i += LANES) store(last + 32 * skipped + i, load(x + 32 * b + i));
    pack_group(reinterpret_cast<Group32*>(to), last, zero, &worst, error ? last : nullptr);
    for (int64_t i = 0; error && i < 32 * here; i += LANES)
      store(error + 32 * b + i, load(last + 32 * skipped + i));
  }
  const int32_t largest = reduce_lanes_of<1>(&worst, Larger{})[0];
  return largest == 0 || (largest > 0x21800000 && largest < 0x7f800000);  // 2^-60, infinity
}

template <class F>
INLINE Int dot_with(Int start, const Pair& q, const Values32& x) {
  const Bytes first = load_bytes(x.first), second = load_bytes(x.second);
  return F::kSigned ? dot_signed(dot_signed(start, q.first, first), q.second, second)
                    : dot_small(dot_small(start, q.first, first), q.second, second);
}

// dot: the products of the codes, less the format's zero, with the values of x, for each lane of a group.
template <class F, class Group>
INLINE void add_scaled(Vec* sum, Int dot, Vec scale, Vec offset, const Group& x) {
  *sum += scale * load(x.scales) * to_float(dot);
  if (F::kOffset) *sum += offset * load(x.sums);
}

template <class F, class Group>
INLINE Int correction(const Group& x) {
  return F::kZero ? load_int(x.corrections) : Int{};
}

// Adds the group of a row at w.
template <class F, class Group, int M>
INLINE void add_group(Vec (&sums)[M], Group w, const char* const (&x)[M]) {
  const Pair q = F::unpack(w);
  const Vec scale = F::scales_of_group(w), offset = F::kOffset ? half_floats<F::kBytes>(w + 2) : Vec{};
  for (int m = 0; m < M; ++m) {
    const Group32& group = *reinterpret_cast<const Group32*>(x[m]);
    add_scaled<F>(&sums[m], dot_with<F>(correction<F>(group), q, group.values), scale, offset, group);
  }
}

// Adds four groups.
template <class F, int M>
INLINE void add_groups(Vec (&sums)[M], const char* w, const char* const (&x)[M]) {
  Int dots[M][4];
  for (int g = 0; g < 4; ++g) {
    const Pair q = F::unpack(w + g * kGroup * F::kBytes);
    for (int m = 0; m < M; ++m)
      dots[m][g] = dot_with<F>(Int{}, q, reinterpret_cast<const Groups32*>(x[m])->values[g]);
  }
  const HalfFloats half_floats = F::numbers_of_blocks(w);
  for (int m = 0; m < M; ++m) {
    const Groups32& groups = *reinterpret_cast<const Groups32*>(x[m]);
    const Int dot = sums_of_blocks(dots[m]) + correction<F>(groups);
    add_scaled<F>(&sums[m], dot, half_floats.first, half_floats.second, groups);
  }
}

template <class F>
struct Blocks32 {
  // Combining sums costs more than it saves if a vector has many lanes and a block has only a scale.
  static constexpr bool kInFours = F::kOffset || LANES < 16;
  template <int M>
  static constexpr int kRows = kInFours && (M > 2 || (M > 1 && LANES < 16)) ? 1 : kWeightRows<M, F::kBeside>;
  static constexpr int64_t in_fours(int64_t blocks) { return kInFours ? blocks / LANES * LANES : 0; }

  static int64_t packed_bytes(int64_t k) {
    const int64_t together = in_fours(k / 32), groups = (k / 32 - together + kGroup - 1) / kGroup;
    return together / LANES * static_cast<int64_t>(sizeof(Groups32)) +
           groups * static_cast<int64_t>(sizeof(Group32));
  }
  static bool pack(char* to, const float* x, int64_t k, float* error) {
    return pack_row32(to, x, k, F::kZero, in_fours(k / 32), error);
  }

  template <int R, int M>
  static INLINE void dots(float (&out)[R][M], const Operands<R, M>& all) {
    const int64_t blocks = all.k / 32;
    Vec sums[R][M] = {};
    const char* x[M];
    for (int m = 0; m < M; ++m) x[m] = all.x[m];
    if (kGroup > 1 && blocks < kGroup)
      for (int r = 0; r < R; ++r) add_padded(sums[r], all.w[r], x, blocks);
    else
      add_rows(sums, all.w, x, blocks);
    sums_across(out, sums);
  }

 private:
  template <int R, int M>
  static INLINE void add_rows(Vec (&sums)[R][M], const char* const (&w)[R], const char* (&x)[M],
                              int64_t blocks) {
    int64_t b = 0;
    for (; b < in_fours(blocks); b += LANES) {
      for (int r = 0; r < R; ++r) add_groups<F>(sums[r], w[r] + b * F::kBytes, x);
      for (int m = 0; m < M; ++m) x[m] += sizeof(Groups32);
    }
    for (; b + kGroup <= blocks; b += kGroup) {
      for (int r = 0; r < R; ++r) add_group<F>(sums[r], w[r] + b * F::kBytes, x);
      for (int m = 0; m < M; ++m) x[m] += sizeof(Group32);
    }
    if (is_half_group(blocks - b)) {
      if constexpr (kHasHalfGroups)
        for (int r = 0; r < R; ++r) add_group<F>(sums[r], HalfGroup{w[r] + b * F::kBytes}, x);
    } else if (b < blocks) {
      for (int r = 0; r < R; ++r) add_group<F>(sums[r], w[r] + (blocks - kGroup) * F::kBytes, x);
    }
  }

  // Adds a row of less than a group.
  template <int M>
  static INLINE void add_padded(Vec (&sums)[M], const char* row, const char* const (&x)[M], int64_t blocks) {
    char padded[kGroup * F::kBytes] = {};
    for (int b = 0; b < kGroup - 1; ++b)
      if (b < blocks) __builtin_memcpy(padded + b * F::kBytes, row + b * F::kBytes, F::kBytes);
    add_group<F>(sums, padded, x);
  }
};

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
