// Kernels of element-wise ops: each element of the result depends on the same element of the inputs.
#pragma once
#include "../dtypes.h"

namespace cpu {

// The total size of an op's arrays that a last-level cache of 32 MB can hold besides other data. Results of
// larger ops would be evicted before they are read, so their stores bypass the caches (`stream`).
constexpr int64_t kCachedBytes = int64_t{26} << 20;
using MapKernel = void(void* out, const void* x, int64_t n, bool stream);
using PairKernel = void(void* out, const void* a, const void* b, int64_t n, bool stream);

// Indexed by DType. [0] of gelu and geglu is the tanh form, [1] the erf form.
struct ElementKernels {
  MapKernel* silu[kDTypes];
  MapKernel* gelu[2][kDTypes];
  PairKernel* swiglu[kDTypes];
  PairKernel* geglu[2][kDTypes];
};

}  // namespace cpu
