// Ops on weights as checkpoints store them, floats of any dtype or blocks of quantized values, and the
// products of a single query that use the same kernels.
#pragma once

#include "../arrays/broadcast.h"
#include "gemm.h"
#include "ops.h"

namespace airllm::cuda {

inline StoredArray stored_array(const Operand& x) {
  const int64_t row = x.axis(1);
  const int64_t row_bytes =
      x.block ? row / x.block->values * x.block->bytes : row * int64_t(size_of(x.dtype));
  return {x.at, format_of(x), row_bytes};
}

// ---- products

constexpr int64_t kFewRows = 8;  // up to here the cost is reading the weight
constexpr int64_t kMostWidened = int64_t{1} << 29;

// The weight as floats of x's dtype: in place if it has that dtype, else in `scratch`. Other float dtypes are
// only converted to float32 (multiply() below requests no others).
inline const void* unpack(const Linear& a, Memory& scratch, int device, cudaStream_t stream) {
  const bool quantized = cpu::is_quantized(cpu::Format(a.weight.format));
  if (!quantized && DType(a.weight.format) == a.dtype) return a.weight.data;
  scratch = Memory(size_t(a.n * a.k) * size_of(a.dtype), device, stream);
  if (quantized) {
    const int64_t blocks = a.n * a.k / cpu::kBlocks[a.weight.format].values;
    check(launch_dequantize(scratch.data(), a.dtype, a.weight, blocks, stream), "the launch of dequantize");
  } else {
    float* const floats = static_cast<float*>(scratch.data());
    check(launch_scale(floats, a.weight.data, DType(a.weight.format), a.n * a.k, 1.0f, stream),
          "the launch of scale");
  }
  return scratch.data();
}

// By cuBLAS, which takes operands of one dtype and adds no bias.
inline cudaError_t multiply_by_cublas(const Linear& a, Cublas& cublas, int device, cudaStream_t stream) {
  Memory scratch;
  const void* weight = unpack(a, scratch, device, stream);
  cublas.matmul(a.out, a.x, weight, a.dtype, {1, a.m, a.n, a.k, true, true}, device, stream);
  return a.bias.type == kNoArray ? cudaSuccess : launch_add_bias(a.out, a.dtype, a.bias, a.m, a.n, stream);
}

inline cudaError_t multiply(const Linear& a, Cublas* cublas, int device, cudaStream_t stream) {
  if (a.m <= kFewRows) return launch_linear_of_few_rows(a, stream);
  const bool quantized = cpu::is_quantized(cpu::Format(a.weight.format));
  const bool ready = quantized || DType(a.weight.format) == a.dtype;
  // Floats of another dtype are never narrowed; they are widened if the copy is not too large.
  const bool widened = a.dtype == DType::f32 && a.n * a.k * int64_t(sizeof(float)) <= kMostWidened;
  if (cublas && (ready || widened) && a.k != 0) return multiply_by_cublas(a, *cublas, device, stream);
  return launch_linear_by_tiles(a, stream);
}

inline Launch linear(const Call& call, const Operand& out, const Operand& x, const Operand& weight,
                     const Operand& bias) {
  return [&, cublas = chosen_cublas(), device = call.device()](cudaStream_t stream) {
    const Linear a{out.at,          x.at,           stored_array(weight),
                   any_array(bias), x.dtype,        rows_of(x),
                   weight.axis(2),  weight.axis(1), 1.0f};
    return multiply(a, cublas, device, stream);
  };
}

// One row: `x` times every row of `weight`.
inline Launch multiply_vector(const Operand& out, const Operand& x, const Operand& weight, float scale) {
  return [&, scale](cudaStream_t stream) {
    const Linear a{out.at, x.at, stored_array(weight), {nullptr, kNoArray}, x.dtype, 1, weight.shape[0],
                   x.size, scale};
    return launch_linear_of_few_rows(a, stream);
  };
}

inline Launch matmul_vec(const Call&, const Operand& out, const Operand& w, const Operand& x) {
  return multiply_vector(out, x, w, 1.0f);
}

inline Launch attention_scores(const Call&, const Operand& out, const Operand& query, const Operand& keys,
                               float scale) {
  return multiply_vector(out, query, keys, scale);
}

inline Launch weighted_sum_rows(const Call&, const Operand& out, const Operand& weights,
                                const Operand& matrix) {
  return [&](cudaStream_t stream) {
    return launch_weighted_sum_rows(out.at, weights.at, matrix.at, weights.dtype, matrix.dtype,
                                    matrix.axis(2), matrix.axis(1), stream);
  };
}

// ---- embedding, dequantize

template <class Id>
void check_ids(const Op& op, const Operand& ids, int64_t count) {
  const auto* values = reinterpret_cast<const Id*>(ids.data);
  for (int64_t i = 0; i < ids.size; ++i) {
    if (values[i] < 0 || values[i] >= count)
      op.wrong_value("ids", "has value " + std::to_string(values[i]), "0 to " + std::to_string(count - 1));
  }
}

// Ids in host memory are checked. Ids on a device are not, to avoid waiting: there an id out of range gives
// NaN.
inline Launch embedding(const Call& call, const Operand& out, const Operand& ids, const Operand& table) {
  const int64_t v = table.axis(2);
  if (ids.on_host()) (ids.dtype == DType::i32 ? check_ids<int32_t> : check_ids<int64_t>)(call.op, ids, v);
  return [&, v](cudaStream_t stream) {
    return launch_embedding(out.at, any_array(ids), stored_array(table), ids.size, v, table.axis(1), stream);
  };
}

inline Launch dequantize(const Call&, const Operand& out, const Operand& q) {
  return [&](cudaStream_t stream) {
    return launch_dequantize(out.at, out.dtype, stored_array(q), q.size / q.block->values, stream);
  };
}

}  // namespace airllm::cuda
