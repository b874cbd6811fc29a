// Kernels of element-wise ops: each element of the result follows from the same element of the arrays.
#pragma once
#include "../dtypes.h"

namespace cpu {

// Bytes of an op's arrays, all of them, that a last cache of 32 MB holds beside other things. The results of
// larger ones would be gone from it before anyone reads them: they are written around the caches (`stream`).
constexpr int64_t kCachedBytes = int64_t{26} << 20;
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
