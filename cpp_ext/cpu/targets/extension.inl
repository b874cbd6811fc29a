// Instruction sets that add a few instructions to a whole one, BASE: the kernels that gain by them are
// compiled again, all others are BASE's. Included as kernels.inl is.

namespace cpu {
namespace ISA {
namespace {

// clang-format off: each needs those before it
#include "../simd/vectors.inl"
#include "../simd/transpose.inl"
#if defined(DOT_U8_I8) || defined(DOT_I8_I8)
#include "../quantized/gemv.inl"
#include "../quantized/gemm.inl"
#endif
#ifdef NARROW_BF16
#include "../ops/elements.inl"
#include "../ops/rows.inl"
#endif
#ifdef DOT_BF16
#include "../ops/matmul.inl"
#endif
// clang-format on

constexpr Kernels extended() {
  Kernels all = BASE::kernels;
  all.isa = STRING(ISA);
#if defined(DOT_U8_I8) || defined(DOT_I8_I8)
  all.prefill = with_bytes(all.prefill);
  all.stored = stored::stored_kernels;
#endif
#ifdef NARROW_BF16
  add_element_kernels<BFloat16>(all.elements, kBFloat16);
  add_row_kernels<BFloat16>(all.rows, kBFloat16);
#endif
#ifdef DOT_BF16
  all.matmul[kBFloat16] = matmul_pairs;
  all.prefill.float_product[kBFloat16] = pair_product;
#endif
  return all;
}

}  // namespace

constexpr Kernels kernels = extended();

}  // namespace ISA
}  // namespace cpu

#include "undef.inl"
