// The launchers of kernels that read stored weights. Part of kernels.cu.
#pragma once

#include "../../cpu/quantized/formats.h"
#include "grids.h"

// cuBLAS's products have no bias.
KERNEL void add_bias(void* out, const void* bias, U64 count, U64 n, U32 out_type, U32 bias_type) {
  for (U64 i = GRP * (U64)LSIZE + (U64)LID; i < count; i += GROUPS * (U64)LSIZE)
    store_any(out, out_type, i, load_any(out, out_type, i) + load_any(bias, bias_type, i % n));
}

namespace airllm::cuda {
namespace {

uint32_t any_type(DType dtype) { return uint32_t(dtype) + kAnyF32; }

// The kernels of a format, and its number in gpu_kernels/common/formats/formats.h; null for a format without
// kernels.
struct StoredKernels {
  decltype(&linear_f32) linear = nullptr;
  decltype(&dequantize_q8_0) dequantize = nullptr;
  decltype(&embedding_q8_0) embedding = nullptr;
  uint32_t number = 0;
};

constexpr StoredKernels kernels_of(int format) {
  switch (format) {
    case cpu::kF32:
      return {linear_f32, nullptr, nullptr, TYPE_F32};
    case cpu::kF16:
      return {linear_f16, nullptr, nullptr, TYPE_F16};
    case cpu::kBF16:
      return {linear_bf16, nullptr, nullptr, TYPE_BF16};
  }
  switch (cpu::kBlocks[format].ggml_type) {
#define KERNELS(format, ggml_type, values, bytes, apart) \
  case ggml_type:                                        \
    return {linear_##format, dequantize_##format, embedding_##format, NUMBER_##format};
    BLOCK_FORMATS(KERNELS)
#undef KERNELS
  }
  return {};
}

// One thread per unit of 16 values, in which kernels read a row.
int threads_of_units(int64_t k) {
  const int64_t warps = (k / 16 + warp() - 1) / warp();
  return int(std::clamp<int64_t>(warps, 1, 128 / warp())) * warp();
}

}  // namespace

bool has_kernels(int format) { return kernels_of(format).linear; }

cudaError_t launch_linear_of_few_rows(const Linear& a, cudaStream_t stream) {
  const Grid grid{(a.n + 1) / 2 * ((a.m + 7) / 8), threads_of_units(a.k)};
  return run(kernels_of(a.weight.format).linear, grid, stream, a.x, a.weight.data, a.bias.data, a.out,
             Size(a.m), Size(a.n), Size(a.k), a.scale, any_type(a.dtype), a.bias.type);
}

cudaError_t launch_linear_by_tiles(const Linear& a, cudaStream_t stream) {
  const Grid grid{((a.m + 63) / 64) * ((a.n + 63) / 64), 256};
  return run(linear_tile, grid, stream, a.x, a.weight.data, a.bias.data, a.out, Size(a.m), Size(a.n),
             Size(a.k), Size(a.weight.row_bytes), a.scale, any_type(a.dtype),
             kernels_of(a.weight.format).number, a.bias.type);
}

cudaError_t launch_add_bias(void* out, DType dtype, AnyArray bias, int64_t m, int64_t n,
                            cudaStream_t stream) {
  const Grid grid = grid_of_elements(m * n, DType::f32);
  return run(add_bias, grid, stream, out, bias.data, Size(m * n), Size(n), any_type(dtype), bias.type);
}

cudaError_t launch_weighted_sum_rows(void* out, const void* weights, const void* matrix, DType dtype,
                                     DType matrix_dtype, int64_t s, int64_t d, cudaStream_t stream) {
  const Grid grid{(d + 31) / 32, 256};
  RUN_OF_DTYPE(matrix_dtype, weighted_sum_rows, , grid, stream, weights, matrix, out, Size(s), Size(d),
               any_type(dtype));
}

cudaError_t launch_dequantize(void* out, DType dtype, const StoredArray& stored, int64_t blocks,
                              cudaStream_t stream) {
  const int64_t units = blocks * (cpu::kBlocks[stored.format].values / 16);
  const Grid grid{(units + 255) / 256, 256};
  return run(kernels_of(stored.format).dequantize, grid, stream, stored.data, out, Size(blocks),
             any_type(dtype));
}

cudaError_t launch_embedding(void* out, AnyArray ids, const StoredArray& table, int64_t count, int64_t rows,
                             int64_t d, cudaStream_t stream) {
  const bool blocks = cpu::is_quantized(cpu::Format(table.format));
  const int64_t items = blocks ? count * (d / 16) : count * d;
  const Grid grid{(items + 255) / 256, 256};
  if (blocks) {
    return run(kernels_of(table.format).embedding, grid, stream, ids.data, table.data, out, Size(count),
               Size(rows), Size(d), ids.type);
  }
  RUN_OF_DTYPE(DType(table.format), embedding, , grid, stream, ids.data, table.data, out, Size(count),
               Size(rows), Size(d), ids.type);
}

}  // namespace airllm::cuda
