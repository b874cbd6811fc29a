// What kernels.cu offers to the rest of the module: one launcher per op, on raw device pointers.
// No Python and no pybind11 here, so that nvcc compiles it in a second or two.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace airllm::cuda {

enum class DType : int { f32, f16, bf16, boolean, u8, i32, i64 };

inline size_t size_of(DType dtype) {
  constexpr size_t sizes[] = {4, 2, 2, 1, 1, 4, 8};
  return sizes[int(dtype)];
}

// Kernels launched by this process so far, cuBLAS's products among them.
inline std::atomic<int64_t> kernels_launched{0};

// Every launcher puts its work on `stream` of the current device and returns without waiting. Arrays are
// C-contiguous; `out` may be exactly `x`. Sizes are 64-bit; the limits of a grid are the launchers' business.

// out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * weight. The weight has x's dtype or float32.
cudaError_t launch_rms_norm(void* out, const void* x, const void* weight, DType dtype, DType weight_dtype,
                            int64_t rows, int64_t n, float eps, cudaStream_t stream);

// out[i] = x[i] / (1 + exp(-x[i]))
cudaError_t launch_silu(void* out, const void* x, DType dtype, int64_t n, cudaStream_t stream);

// The tanh form of gelu.
cudaError_t launch_gelu(void* out, const void* x, DType dtype, int64_t n, cudaStream_t stream);

// Softmax of every row; a row that is all -inf becomes zeros.
cudaError_t launch_softmax(void* out, const void* x, DType dtype, int64_t rows, int64_t n,
                           cudaStream_t stream);

// `batch` products of (m, k) by (k, n), all row-major and packed; b is one matrix for all if it is shared.
struct Product {
  int64_t batch, m, n, k;
  bool b_is_shared;
};

cudaError_t launch_matmul(void* out, const void* a, const void* b, DType dtype, const Product& product,
                          cudaStream_t stream);

// The virtual architectures the kernels were compiled for, e.g. "75, 80, 90".
const char* compiled_archs();

}  // namespace airllm::cuda
