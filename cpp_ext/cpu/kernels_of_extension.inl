// Instruction sets that add a few instructions to a whole one, BASE: the kernels that gain by them are
// compiled again, all others are BASE's. Included by targets.h as kernels.inl is.

namespace cpu {
namespace ISA {
namespace {

#include "vectors.inl"

constexpr Kernels extended() {
  Kernels all = BASE::kernels;
  all.isa = STRING(ISA);
  return all;
}

}  // namespace

constexpr Kernels kernels = extended();

}  // namespace ISA
}  // namespace cpu

#include "end_of_target.inl"
