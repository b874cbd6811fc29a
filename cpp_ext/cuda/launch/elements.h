// The launchers of element-wise kernels. Part of kernels.cu.
#pragma once

#include "grids.h"

namespace airllm::cuda {

#define LAUNCH_UNARY(op)                                                                           \
  cudaError_t launch_##op(void* out, const void* x, DType dtype, int64_t n, cudaStream_t stream) { \
    RUN_OF_DTYPE(dtype, op, , grid_of_elements(n, dtype), stream, x, out, Size(n));                \
  }

#define LAUNCH_GATE(op)                                                                        \
  cudaError_t launch_##op(void* out, const void* gate, const void* up, DType dtype, int64_t n, \
                          cudaStream_t stream) {                                               \
    RUN_OF_DTYPE(dtype, op, , grid_of_elements(n, dtype), stream, gate, up, out, Size(n));     \
  }

LAUNCH_UNARY(silu)
LAUNCH_UNARY(gelu)
LAUNCH_UNARY(gelu_erf)
LAUNCH_GATE(swiglu)
LAUNCH_GATE(geglu)
LAUNCH_GATE(geglu_erf)

#undef LAUNCH_UNARY
#undef LAUNCH_GATE

}  // namespace airllm::cuda
