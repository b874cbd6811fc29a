// The interface of kernels.cu: one launcher per op, on raw device pointers.
// It includes neither Python nor pybind11, so that nvcc compiles it in a second or two.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../runtime/types.h"

namespace airllm::cuda {

// An array whose dtype the kernel reads at run time; the numbers are those of
// gpu_kernels/common/dynamic_dtype.h.
enum AnyType : uint32_t { kNoArray, kAnyF32, kAnyF16, kAnyBF16, kAnyBool, kAnyI32, kAnyI64 };
struct AnyArray {
  const void* data;
  uint32_t type;
};

// The rows of a broadcast array: the last three sizes of the result's leading axes, merged to four axes, and
// the array's strides along the four.
struct Rows4 {
  int64_t sizes[3], strides[4];
};

// Every launcher enqueues its work on `stream` of the current device and returns without waiting. Arrays are
// C-contiguous; `out` may be exactly an input of its shape. Sizes are 64-bit; the launchers handle the limits
// of a grid.

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

// sum = x + residual, normed = rms_norm(sum); both may be one of the inputs.
cudaError_t launch_add_rms_norm(void* sum, void* normed, const void* x, const void* residual, AnyArray weight,
                                DType dtype, int64_t rows, int64_t n, float eps, cudaStream_t stream);

// Softmax of every row; a row of only -inf becomes zeros.
cudaError_t launch_softmax(void* out, const void* x, DType dtype, int64_t rows, int64_t n,
                           cudaStream_t stream);

// Softmax of x * scale + mask.
cudaError_t launch_masked_softmax(void* out, const void* x, AnyArray mask, const Rows4& mask_rows,
                                  DType dtype, int64_t rows, int64_t n, float scale, cudaStream_t stream);

// Rotates the first 2 r elements of every row by the angles of its row of cos and sin.
cudaError_t launch_apply_rope(void* out, const void* x, AnyArray cos, AnyArray sin, const Rows4& angle_rows,
                              DType dtype, int64_t rows, int64_t n, int64_t r, bool interleaved,
                              cudaStream_t stream);

// ---- products

cudaError_t launch_matmul(void* out, const void* a, const void* b, DType dtype, const Product& product,
                          cudaStream_t stream);

// ---- stored weights

// A weight of floats or of blocks. `format` is a cpu::Format; for floats it equals the DType's number.
struct StoredArray {
  const void* data;
  int format;
  int64_t row_bytes;
};

// Whether the kernels support a cpu::Format.
bool has_kernels(int format);

// out (m, n) = x (m, k) weight^T (n, k) * scale + bias. x and out have one dtype; bias has any dtype or is
// absent.
struct Linear {
  void* out;
  const void* x;
  StoredArray weight;
  AnyArray bias;
  DType dtype;
  int64_t m, n, k;
  float scale;
};

// Reads the weight once per 8 rows of x, or once per 64.
cudaError_t launch_linear_of_few_rows(const Linear& linear, cudaStream_t stream);
cudaError_t launch_linear_by_tiles(const Linear& linear, cudaStream_t stream);

// out (m, n) += bias, for products that do not add it themselves.
cudaError_t launch_add_bias(void* out, DType dtype, AnyArray bias, int64_t m, int64_t n, cudaStream_t stream);

// out (d) = weights (s) @ matrix (s, d). weights and out have one dtype, the matrix may have another.
cudaError_t launch_weighted_sum_rows(void* out, const void* weights, const void* matrix, DType dtype,
                                     DType matrix_dtype, int64_t s, int64_t d, cudaStream_t stream);

// The values of `blocks` blocks of a quantized format, as floats.
cudaError_t launch_dequantize(void* out, DType dtype, const StoredArray& stored, int64_t blocks,
                              cudaStream_t stream);

// Rows of a table (rows, d); an id out of range gives NaN. out has the table's dtype, or float32.
cudaError_t launch_embedding(void* out, AnyArray ids, const StoredArray& table, int64_t count, int64_t rows,
                             int64_t d, cudaStream_t stream);

// ---- attention

struct AttentionShape {
  int64_t outer, inner, h, g, t, s, d, e;  // a batch of two axes; query head i of h uses key head i / (h / g)
};

// In elements; 0 along broadcast axes.
struct AttentionStrides {
  int64_t outer, inner, head, row;
};

struct Attention {
  void* out;  // contiguous, of q's dtype
  const void *q, *k, *v;
  AnyArray mask;
  AnyArray sinks;         // one for each query head
  float* partial;         // of attention_partial() floats
  const int64_t* length;  // the number of keys, in device memory, for one query; null: shape.s
  DType dtype, kv_dtype;
  AttentionShape shape;
  AttentionStrides strides[4];  // of q, k, v, mask
  float scale, softcap;         // softcap 0: none
  int64_t window;               // 0: none
  bool causal;
};

// The floats of scratch memory that launch_attention() needs.
int64_t attention_partial(const AttentionShape& shape);

cudaError_t launch_attention(const Attention& attention, cudaStream_t stream);

// ---- a decoding step: what depends on the sequence's length is read from device memory

// Writes the rows of x (heads, d), float32, to row *position of a cache (heads, capacity, d).
cudaError_t launch_put_rows(void* cache, DType dtype, const float* x, const int64_t* position, int64_t heads,
                            int64_t capacity, int64_t d, cudaStream_t stream);

// out = x * scale in float32; out may be x.
cudaError_t launch_scale(float* out, const void* x, DType dtype, int64_t n, float scale, cudaStream_t stream);

// x = cap * tanh(x / cap)
cudaError_t launch_softcap(float* x, int64_t n, float cap, cudaStream_t stream);

// The virtual architectures for which the kernels were compiled, e.g. "75, 80, 90".
const char* compiled_archs();

}  // namespace airllm::cuda
