// The launchers of kernels that compute each row independently. Part of kernels.cu.
#pragma once

#include "grids.h"

namespace airllm::cuda {
// The kernels' LEADING parameters.
#define LEADING_OF(rows)                                                                \
  Size(rows.sizes[0]), Size(rows.sizes[1]), Size(rows.sizes[2]), Size(rows.strides[0]), \
      Size(rows.strides[1]), Size(rows.strides[2]), Size(rows.strides[3])

cudaError_t launch_rms_norm(void* out, const void* x, const void* weight, DType dtype, DType weight_dtype,
                            int64_t rows, int64_t n, float eps, cudaStream_t stream) {
  const Grid grid = grid_of_rows(rows, n, dtype);
  if (weight_dtype == dtype) {
    RUN_OF_DTYPE(dtype, rms_norm, , grid, stream, x, weight, out, Size(rows), Size(n), eps);
  }
  if (weight_dtype != DType::f32) return cudaErrorInvalidValue;
  const auto kernel_f16 = rms_norm_f16_weight_f32;
  const auto kernel_bf16 = rms_norm_bf16_weight_f32;
  return dtype == DType::f16 ? run(kernel_f16, grid, stream, x, weight, out, Size(rows), Size(n), eps)
                             : run(kernel_bf16, grid, stream, x, weight, out, Size(rows), Size(n), eps);
}

cudaError_t launch_layer_norm(void* out, const void* x, AnyArray weight, AnyArray bias, DType dtype,
                              int64_t rows, int64_t n, float eps, cudaStream_t stream) {
  RUN_OF_DTYPE(dtype, layer_norm, , grid_of_rows(rows, n, dtype), stream, x, weight.data, bias.data, out,
               Size(rows), Size(n), eps, weight.type, bias.type);
}

cudaError_t launch_add_rms_norm(void* sum, void* normed, const void* x, const void* residual, AnyArray weight,
                                DType dtype, int64_t rows, int64_t n, float eps, cudaStream_t stream) {
  RUN_OF_DTYPE(dtype, add_rms_norm, , grid_of_rows(rows, n, dtype), stream, x, residual, weight.data, sum,
               normed, Size(rows), Size(n), eps, weight.type);
}

cudaError_t launch_softmax(void* out, const void* x, DType dtype, int64_t rows, int64_t n,
                           cudaStream_t stream) {
  RUN_OF_DTYPE(dtype, softmax, , grid_of_rows(rows, n, dtype), stream, x, out, Size(rows), Size(n));
}

cudaError_t launch_masked_softmax(void* out, const void* x, AnyArray mask, const Rows4& mask_rows,
                                  DType dtype, int64_t rows, int64_t n, float scale, cudaStream_t stream) {
  RUN_OF_DTYPE(dtype, masked_softmax, , grid_of_rows(rows, n, dtype), stream, x, mask.data, out, Size(rows),
               Size(n), scale, mask.type, LEADING_OF(mask_rows));
}

// Each `per_row` threads compute a row.
cudaError_t launch_apply_rope(void* out, const void* x, AnyArray cos, AnyArray sin, const Rows4& angle_rows,
                              DType dtype, int64_t rows, int64_t n, int64_t r, bool interleaved,
                              cudaStream_t stream) {
  constexpr int threads = 256;
  uint32_t per_row = 1;
  while (per_row < threads && per_row < std::max(r, n - 2 * r)) per_row *= 2;
  const int64_t rows_at_once = threads / per_row;
  const Grid grid{(rows + rows_at_once - 1) / rows_at_once, threads};
  RUN_OF_DTYPE(dtype, apply_rope, , grid, stream, x, cos.data, sin.data, out, Size(rows), Size(n), Size(r),
               uint32_t(interleaved), cos.type, sin.type, per_row, LEADING_OF(angle_rows));
}

#undef LEADING_OF

}  // namespace airllm::cuda
