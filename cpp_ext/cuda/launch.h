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

// An array that a kernel reads whatever its type is, by the numbers of gpu_kernels/any.h.
enum AnyType : uint32_t { kNoArray, kAnyF32, kAnyF16, kAnyBF16, kAnyBool, kAnyI32, kAnyI64 };
struct AnyArray {
  const void* data;
  uint32_t type;
};

// Where an array that is broadcast has its rows: the last three sizes of the result's leading axes, taken
// together to four, and its strides along the four.
struct Rows4 {
  int64_t sizes[3], strides[4];
};

// Every launcher puts its work on `stream` of the current device and returns without waiting. Arrays are
// C-contiguous; `out` may be exactly an input of its shape. Sizes are 64-bit; the limits of a grid are the
// launchers' business.

// ---- elements: out[i] = f(x[i]), or f(gate[i]) * up[i]

cudaError_t launch_silu(void* out, const void* x, DType dtype, int64_t n, cudaStream_t stream);
cudaError_t launch_gelu(void* out, const void* x, DType dtype, int64_t n, cudaStream_t stream);
cudaError_t launch_gelu_erf(void* out, const void* x, DType dtype, int64_t n, cudaStream_t stream);
cudaError_t launch_swiglu(void* out, const void* gate, const void* up, DType dtype, int64_t n,
                          cudaStream_t stream);
cudaError_t launch_geglu(void* out, const void* gate, const void* up, DType dtype, int64_t n,
                         cudaStream_t stream);
cudaError_t launch_geglu_erf(void* out, const void* gate, const void* up, DType dtype, int64_t n,
                             cudaStream_t stream);

// ---- rows

// out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * weight. The weight has x's dtype or float32.
cudaError_t launch_rms_norm(void* out, const void* x, const void* weight, DType dtype, DType weight_dtype,
                            int64_t rows, int64_t n, float eps, cudaStream_t stream);

cudaError_t launch_layer_norm(void* out, const void* x, AnyArray weight, AnyArray bias, DType dtype,
                              int64_t rows, int64_t n, float eps, cudaStream_t stream);

// sum = x + residual, normed = rms_norm(sum); both may be one of the two.
cudaError_t launch_add_rms_norm(void* sum, void* normed, const void* x, const void* residual, AnyArray weight,
                                DType dtype, int64_t rows, int64_t n, float eps, cudaStream_t stream);

// Softmax of every row; a row that is all -inf becomes zeros.
cudaError_t launch_softmax(void* out, const void* x, DType dtype, int64_t rows, int64_t n,
                           cudaStream_t stream);

// Softmax of x * scale + mask.
cudaError_t launch_masked_softmax(void* out, const void* x, AnyArray mask, const Rows4& mask_rows,
                                  DType dtype, int64_t rows, int64_t n, float scale, cudaStream_t stream);

// Turns the first 2 r elements of every row by the angles of its row of cos and sin.
cudaError_t launch_apply_rope(void* out, const void* x, AnyArray cos, AnyArray sin, const Rows4& angle_rows,
                              DType dtype, int64_t rows, int64_t n, int64_t r, bool interleaved,
                              cudaStream_t stream);

// ---- products

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
