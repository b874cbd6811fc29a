// The kernels that only a decoding step uses, and their launchers. Part of kernels.cu.
#pragma once

#include "stored.h"

KERNEL void put_rows(const float* x, void* cache, const I64* position, U64 heads, U64 capacity, U64 d,
                     U32 cache_type) {
  const U64 row = (U64)*position;
  for (U64 i = GRP * (U64)LSIZE + (U64)LID; i < heads * d; i += GROUPS * (U64)LSIZE)
    store_any(cache, cache_type, (i / d * capacity + row) * d + i % d, x[i]);
}

KERNEL void scale(const void* x, float* out, U64 count, float by, U32 x_type) {
  for (U64 i = GRP * (U64)LSIZE + (U64)LID; i < count; i += GROUPS * (U64)LSIZE)
    out[i] = load_any(x, x_type, i) * by;
}

KERNEL void softcap(float* x, U64 count, float cap) {
  for (U64 i = GRP * (U64)LSIZE + (U64)LID; i < count; i += GROUPS * (U64)LSIZE)
    x[i] = cap * TANH(x[i] / cap);
}

namespace airllm::cuda {

cudaError_t launch_put_rows(void* cache, DType dtype, const float* x, const int64_t* position, int64_t heads,
                            int64_t capacity, int64_t d, cudaStream_t stream) {
  return run(put_rows, grid_of_elements(heads * d, DType::f32), stream, x, cache, position, Size(heads),
             Size(capacity), Size(d), any_type(dtype));
}

cudaError_t launch_scale(float* out, const void* x, DType dtype, int64_t n, float by, cudaStream_t stream) {
  return run(scale, grid_of_elements(n, DType::f32), stream, x, out, Size(n), by, any_type(dtype));
}

cudaError_t launch_softcap(float* x, int64_t n, float cap, cudaStream_t stream) {
  return run(softcap, grid_of_elements(n, DType::f32), stream, x, Size(n), cap);
}

}  // namespace airllm::cuda
