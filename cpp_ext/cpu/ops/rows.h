// Kernels of ops that compute each row (the last axis) independently.
#pragma once
#include "../dtypes.h"

namespace cpu {

// Dense rows of one dtype. `stream`: stores bypass the caches.
struct Rows {
  int64_t count, dim;
  bool stream;
};

// Values whose dtype is known only at run time; null if absent.
struct AnyValues {
  const void* data;
  DType dtype;
};

// The same for several rows, `step` bytes apart; a step of zero means that all rows share one.
struct AnyRows {
  AnyValues first;
  int64_t step;
};

using RmsNormKernel = void(void* out, const void* x, const void* weight, const Rows& rows, float eps);
using AddRmsNormKernel = void(void* sum, void* normed, const void* x, const void* residual, AnyValues weight,
                              const Rows& rows, float eps);
using LayerNormKernel = void(void* out, const void* x, AnyValues weight, AnyValues bias, const Rows& rows,
                             float eps);
// softmax(x * scale + mask). A bool mask keeps the elements where it is true.
using SoftmaxKernel = void(void* out, const void* x, AnyRows mask, const Rows& rows, float scale);
// The first 2 * pairs elements of each row are rotated, the others copied.
using RopeKernel = void(void* out, const void* x, AnyRows cos, AnyRows sin, const Rows& rows, int64_t pairs);

// Indexed by the DType of the first array.
struct RowKernels {
  SoftmaxKernel* softmax[kDTypes];
  RmsNormKernel* rms_norm[kDTypes][2];  // [1]: the weight is float32, [0]: it has the dtype of x
  AddRmsNormKernel* add_rms_norm[kDTypes];
  LayerNormKernel* layer_norm[kDTypes];
  RopeKernel* rope[2][kDTypes];  // [0]: pairs (i, i + pairs), [1]: pairs (2i, 2i + 1)
};

}  // namespace cpu
