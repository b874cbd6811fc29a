// The CPU kernels, written once. isa.h, avx2.inl and avx512.inl include this file once per instruction set,
// with
//   ISA             the namespace and name of the set
//   LANES, VECTORS  the floats in a vector, and the number of vector registers
// and macros for its special instructions, in a region where the compiler may use the set.
//
// Each kernel file includes the files that it uses; undef.inl allows including them for the next set. They
// must not include a header that region.h does not: its inline functions would be compiled for the wrong CPU.
#include "../ops/attention.inl"
#include "../ops/elements.inl"
#include "../ops/gemv.inl"
#include "../ops/matmul.inl"
#include "../ops/matmul_stored.inl"
#include "../ops/rows.inl"
#include "../quantized/gemm/gemm.inl"
#include "../quantized/gemv/gemv.inl"
#include "../simd/vectors.inl"

namespace cpu::ISA {
namespace {

float read_all(const void* x, int64_t n) {
  return reduce(0.f, n, Plus{}, Identity{}, static_cast<const float*>(x));
}

template <class Table>
constexpr Table of_dtypes(void (*of_float32)(Table&, DType), void (*of_float16)(Table&, DType),
                          void (*of_bfloat16)(Table&, DType)) {
  Table all = {};
  of_float32(all, kFloat32);
  of_float16(all, kFloat16);
  of_bfloat16(all, kBFloat16);
  return all;
}

}  // namespace

constexpr Kernels kernels = {
    STRING(ISA),
    LANES,
    of_dtypes(add_element_kernels<float>, add_element_kernels<Float16>, add_element_kernels<BFloat16>),
    of_dtypes(add_row_kernels<float>, add_row_kernels<Float16>, add_row_kernels<BFloat16>),
    {gemv_float, gemv<Float16>, gemv<BFloat16>},
    {sum_parts<float>, sum_parts<Float16>, sum_parts<BFloat16>},
    {matmul<float>, matmul<Float16>, matmul<BFloat16>},
    kMatmulWorkspace,
    with_bytes(by_floats()),
    map_kernel<Identity, float>,
    read_all,
    attention_kernels,
    stored::stored_kernels,
};

}  // namespace cpu::ISA

#include "undef.inl"
