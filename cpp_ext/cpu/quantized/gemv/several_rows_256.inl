// Products of several rows of x with blocks of 256 values: which panels multiply how many rows.
#ifndef AIRLLM_SEVERAL_ROWS_256_INL
#define AIRLLM_SEVERAL_ROWS_256_INL
#include "../gemm/panels_256.inl"
#include "../gemm/word_panels_256.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// Many rows of x are taken in parts, and panels of 64 rows of weights stay in the second cache.
template <class A>
void many_rows256(const LinearPart& part, UnpackPanel<A>* unpack) {
#ifdef WORD_PANELS
  if constexpr (kByWords<A>) return many_rows_by_words<A>(part, unpack);
#endif
  constexpr int kMany = 96;
  const int64_t per_row = part.with_rounding_error ? 2 : 1;
  for (int64_t m = 0; m < part.m; m += kMany / per_row)
    multiply_panels<A, kMany, 64 / LANES, 4>(part, m, smaller(kMany, part.packed_rows() - m * per_row),
                                             unpack);
}

// A few rows of x are multiplied by a panel while it is in the first cache.
template <class A>
void by_panels256(const LinearPart& part, UnpackPanel<A>* unpack) {
  constexpr int kFew = kDecodeRows;
  part.packed_rows() <= kFew ? multiply_panels<A, kFew, 1, 1>(part, 0, part.packed_rows(), unpack)
                             : many_rows256<A>(part, unpack);
}
template <class F>
void by_panels256(const LinearPart& part) {
  by_panels256<ArithmeticOf<F>>(part, unpack_rows<F>);
}

template <class F>
void several_rows256(const LinearPart& part) {
  if constexpr (!F::kSigned)
    if (part.packed_rows() == 3) return few_rows256<F, 3>(part);
  by_panels256<F>(part);
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
