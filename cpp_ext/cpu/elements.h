// Kernels of element-wise ops: each element of the result follows from the same element of the arrays.
#pragma once
#include "dtypes.h"

namespace cpu {

// `stream`: write around the caches. Right for results of more than kStreamedBytes, which
// are gone from them before anyone reads them.
constexpr int64_t kStreamedBytes = int64_t{16} << 20;
using MapKernel = void(void* out, const void* x, int64_t n, bool stream);
using PairKernel = void(void* out, const void* a, const void* b, int64_t n, bool stream);

// Indexed by DType. [0] of gelu and geglu is the tanh form, [1] the one with the error function.
struct ElementKernels {
  MapKernel* silu[kDTypes];
  MapKernel* gelu[2][kDTypes];
  PairKernel* swiglu[kDTypes];
  PairKernel* geglu[2][kDTypes];
};

}  // namespace cpu
