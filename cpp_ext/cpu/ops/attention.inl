// The attention kernels, and their two halves as kernels of their own.
#ifndef AIRLLM_ATTENTION_INL
#define AIRLLM_ATTENTION_INL
#include "attention_few_rows.inl"
#include "attention_panels.inl"

namespace cpu::ISA {
namespace {

// ---- the two halves, for one query

template <class T>
void scores(float* out, const float* x, const void* matrix, int64_t stride, int64_t rows, int64_t d) {
  float block[kKeys];
  for (int64_t j = 0; j < rows; j += kKeys) {
    const int64_t n = smaller(kKeys, rows - j);
    const T* const here = static_cast<const T*>(matrix) + j * stride;
    dots_of_block<1, T>(block, x, 0, {here, stride, n < rows - j ? here + n * stride : here, stride}, d, n);
    map(out + j, n, Identity{}, block);
  }
}

template <class T>
void add_weighted_rows(float* out, const float* weights, const void* matrix, int64_t stride, int64_t rows,
                       int64_t d) {
  for (int64_t j = 0; j < rows; j += kKeys) {
    const int64_t n = smaller(kKeys, rows - j);
    const T* const here = static_cast<const T*>(matrix) + j * stride;
    add_block<1, T>(out, 0, weights + j, {here, stride, n < rows - j ? here + n * stride : here, stride}, d,
                    n);
  }
}

constexpr AttentionKernels attention_kernels = {
    kFewQueryRows,
    kPanelRows,
    {few_rows<float>, few_rows<Float16>, few_rows<BFloat16>, few_rows<Q8Block>},
    panel_rows,
    attention_workspace,
    merge,
    {scores<float>, scores<Float16>, scores<BFloat16>},
    {add_weighted_rows<float>, add_weighted_rows<Float16>, add_weighted_rows<BFloat16>},
    {widen<float>, widen<Float16>, widen<BFloat16>, widen_bool},
    {narrow<float>, narrow<Float16>, narrow<BFloat16>},
    cap,
};

}  // namespace
}  // namespace cpu::ISA

#endif
