// Instruction sets that add a few instructions to another one, BASE: the kernels that benefit are compiled
// again, all others are BASE's. Included like kernels.inl.
#ifndef ISA  // compiled alone: the set of editor.h, with no additions
#include "kernels.inl"
#define ISA extended
#define BASE alone
#define LANES 4
#define VECTORS 16
#endif

#if defined(DOT_U8_I8) || defined(DOT_I8_I8)
#include "../quantized/gemm.inl"
#include "../quantized/gemv.inl"
#endif
#ifdef NARROW_BF16
#include "../ops/elements.inl"
#include "../ops/rows.inl"
#endif
#ifdef DOT_BF16
#include "../ops/matmul.inl"
#endif

namespace cpu::ISA {
namespace {

constexpr Kernels extend_base() {
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

constexpr Kernels kernels = extend_base();

}  // namespace cpu::ISA

#include "undef.inl"
