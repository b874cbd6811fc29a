// Instruction sets that add a few instructions to a whole one, BASE: the kernels that gain by them are
// compiled again, all others are BASE's. Included by targets.h as kernels.inl is.

namespace cpu {
namespace ISA {
namespace {

// clang-format off: each needs those before it
#include "vectors.inl"
#include "transpose.inl"
#include "codes.inl"
#include "prefill.inl"
#include "quantized.inl"
// clang-format on

constexpr Kernels extended() {
  Kernels all = BASE::kernels;
  all.isa = STRING(ISA);
  all.prefill = with_bytes(all.prefill);
  all.stored = stored::stored_kernels;
  return all;
}

}  // namespace

constexpr Kernels kernels = extended();

}  // namespace ISA
}  // namespace cpu

#include "end_of_target.inl"
