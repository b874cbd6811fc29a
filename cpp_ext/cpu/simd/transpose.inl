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

}  // namespace
}  // namespace cpu::ISA

#endif
