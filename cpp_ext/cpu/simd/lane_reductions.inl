// Reduces the lanes of several vectors at once, with half the instructions of reducing them one by one.
#ifndef AIRLLM_LANE_REDUCTIONS_INL
#define AIRLLM_LANE_REDUCTIONS_INL
#include "bytes.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// Joins each piece of kDistance lanes with the next one. The result holds the joined pieces of a, then those
// of b.
template <int kDistance, class V, class Join, int... I>
INLINE V join_pieces(V a, V b, const Join& join, std::integer_sequence<int, I...>) {
  return join(__builtin_shufflevector(a, b, (I / kDistance * 2 * kDistance + I % kDistance)...),
              __builtin_shufflevector(a, b, (I / kDistance * 2 * kDistance + I % kDistance + kDistance)...));
}

template <int kDistance, class V, class Join>
INLINE V reduce_pieces(V v, const Join& join) {  // each of 2 kDistance lanes
  if constexpr (kDistance == 0) {
    return v;
  } else {
    return reduce_pieces<kDistance / 2>(join(v, swap_lanes<kDistance>(v, Lanes{})), join);
  }
}

template <int N, class V, class Join>
INLINE V join_side_by_side(const V* v, const Join& join) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    return join_pieces<LANES / N>(join_side_by_side<N / 2>(v, join),
                                  join_side_by_side<N / 2>(v + N / 2, join), join, Lanes{});
  }
}

// Reduces each of N vectors (a power of two, at most LANES) to LANES / N lanes of the result.
template <int N, class V, class Join>
INLINE V reduce_lanes_of(const V* v, const Join& join) {
  return reduce_pieces<LANES / N / 2>(join_side_by_side<N>(v, join), join);
}

// The sum of the lanes of each vector.
template <int R, int M>
INLINE void sums_across(float (&out)[R][M], const Vec (&sums)[R][M]) {
  constexpr int kAll = R * M, kStep = kAll < 4 ? kAll : 4;
  const Vec* const from = sums[0];
  float* const to = out[0];
  for (int i = 0; i < kAll; i += kStep) {
    const Vec all = reduce_lanes_of<kStep>(from + i, Plus{});
    for (int j = 0; j < kStep; ++j) to[i + j] = all[j * (LANES / kStep)];
  }
}

// Four vectors hold four lanes of each block. Returns the sums of each block: piece p of group g is in lane 4
// p + g.
template <int kFirst, int... I>
INLINE Int zip(Int a, Int b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I / 4 * 4 + kFirst + I % 4 / 2 + I % 2 * LANES)...);
}
template <int kFirst, int... I>
INLINE Int zip_pairs(Int a, Int b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I / 4 * 4 + kFirst + I % 2 + I % 4 / 2 * LANES)...);
}
INLINE Int sums_of_blocks(const Int (&v)[4]) {
  const Int ab = zip<0>(v[0], v[1], Lanes{}) + zip<2>(v[0], v[1], Lanes{});
  const Int cd = zip<0>(v[2], v[3], Lanes{}) + zip<2>(v[2], v[3], Lanes{});
  return zip_pairs<0>(ab, cd, Lanes{}) + zip_pairs<2>(ab, cd, Lanes{});
}

// Moves lane kGroup g + p to lane 4 p + g.
template <int... I>
INLINE Vec in_order_of_sums(Vec v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (kGroup * (I % 4) + I / 4)...);
}

// Lanes [kGroup * kNumber, kGroup * (kNumber + 1)), each four times.
template <int kNumber, int... I>
INLINE Vec four_times(Vec v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (kGroup * kNumber + I / 4)...);
}
template <int kNumber>
INLINE Vec four_times(Vec v) {
  return four_times<kNumber>(v, Lanes{});
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
