// Transposes a square block of vectors in registers: lane j of vector i becomes lane i of vector j.
#ifndef AIRLLM_TRANSPOSE_INL
#define AIRLLM_TRANSPOSE_INL
#include "vectors.inl"

namespace cpu::ISA {
namespace {

template <int kDistance, class V, int... I>
INLINE void swap_halves(V& a, V& b, std::integer_sequence<int, I...>) {
  constexpr int kLanes = sizeof...(I);
  const V low = __builtin_shufflevector(a, b, (I & kDistance ? kLanes + (I ^ kDistance) : I)...);
  b = __builtin_shufflevector(a, b, (I & kDistance ? kLanes + I : I ^ kDistance)...);
  a = low;
}

// rows[i][j] <-> rows[j][i]
template <int kLanes, int kDistance = kLanes / 2, class V>
INLINE void transpose(V* rows) {
  for (int i = 0; i < kLanes; ++i)
    if (!(i & kDistance))
      swap_halves<kDistance>(rows[i], rows[i + kDistance], std::make_integer_sequence<int, kLanes>{});
  if constexpr (kDistance > 1) transpose<kLanes, kDistance / 2>(rows);
}

// Lanes [kFirst, kFirst + 2) of each four of a and b: kWords of a, then as many of b, and so on.
template <int kFirst, int kWords, class V, int... I>
INLINE V in_turn(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int kLanes = sizeof...(I);
  return __builtin_shufflevector(
      a, b, (I / 4 * 4 + kFirst + I % 4 / (2 * kWords) + I % kWords + I / kWords % 2 * kLanes)...);
}

// rows[i][4 l + j] <-> rows[j][4 l + i], for four vectors
template <class V>
INLINE void transpose_fours(V* rows) {
  constexpr auto kAll = std::make_integer_sequence<int, sizeof(V) / sizeof(rows[0][0])>{};
  const V a = in_turn<0, 1>(rows[0], rows[1], kAll), b = in_turn<0, 1>(rows[2], rows[3], kAll);
  const V c = in_turn<2, 1>(rows[0], rows[1], kAll), d = in_turn<2, 1>(rows[2], rows[3], kAll);
  rows[0] = in_turn<0, 2>(a, b, kAll);
  rows[1] = in_turn<2, 2>(a, b, kAll);
  rows[2] = in_turn<0, 2>(c, d, kAll);
  rows[3] = in_turn<2, 2>(c, d, kAll);
}

}  // namespace
}  // namespace cpu::ISA

#endif
