// The launchers of attention. Part of kernels.cu.
#pragma once

#include "grids.h"

namespace airllm::cuda {
namespace {

constexpr int64_t kManyQueries = 16;        // from here on a work-group takes a tile of queries, not one
constexpr int64_t kLongestDot = 512;        // a score of a tile is one sum of products
constexpr int64_t kLeastKeysOfSplit = 256;  // below, merging parts costs more time than it saves
constexpr int64_t kColumns = 128;           // columns of v per work-group

int64_t across(const AttentionShape& shape) { return (shape.e + kColumns - 1) / kColumns; }

bool by_tiles(const AttentionShape& shape) { return shape.t >= kManyQueries && shape.d <= kLongestDot; }

// The parts into which a query's keys are split, so that few queries also fill the device.
int64_t attention_splits(const AttentionShape& shape) {
  if (by_tiles(shape)) return 1;
  const int64_t groups = shape.outer * shape.inner * shape.h * shape.t * across(shape);
  const int64_t wanted = (8 * int64_t(multiprocessors()) + groups - 1) / groups;
  return std::max<int64_t>(1, std::min(wanted, shape.s / kLeastKeysOfSplit));
}

// The kernels' ATTENTION parameters.
#define ATTENTION_OF(a)                                                                                 \
  Size(a.shape.outer* a.shape.inner), Size(a.shape.inner), Size(a.shape.h), Size(a.shape.g),            \
      Size(a.shape.t), Size(a.shape.s), Size(a.shape.d), Size(a.shape.e), STRIDES_OF(a.strides[0]),     \
      STRIDES_OF(a.strides[1]), STRIDES_OF(a.strides[2]), STRIDES_OF(a.strides[3]), a.scale, a.softcap, \
      Size(a.window), uint32_t(a.causal), uint32_t(a.dtype) + kAnyF32, a.mask.type, a.sinks.type
#define STRIDES_OF(s) Size(s.outer), Size(s.inner), Size(s.head), Size(s.row)

cudaError_t attention_by_rows(const Attention& a, int64_t splits, cudaStream_t stream) {
  const AttentionShape& shape = a.shape;
  const Grid grid{shape.outer * shape.inner * shape.h * shape.t * splits * across(shape), 128};
  RUN_OF_DTYPE(a.kv_dtype, attention_row, , grid, stream, a.q, a.k, a.v, a.mask.data, a.sinks.data, a.out,
               a.partial, a.length, Size(splits), Size(1), Size(0), ATTENTION_OF(a));
}

cudaError_t attention_by_tiles(const Attention& a, cudaStream_t stream) {
  const AttentionShape& shape = a.shape;
  const Grid grid{shape.outer * shape.inner * shape.h * ((shape.t + 63) / 64) * across(shape), 256};
  RUN_OF_DTYPE(a.kv_dtype, attention_tile, , grid, stream, a.q, a.k, a.v, a.mask.data, a.sinks.data, a.out,
               ATTENTION_OF(a));
}

#undef ATTENTION_OF
#undef STRIDES_OF

cudaError_t combine(const Attention& a, int64_t splits, cudaStream_t stream) {
  const int64_t rows = a.shape.outer * a.shape.inner * a.shape.h * a.shape.t;
  const Grid grid = grid_of_elements(rows * a.shape.e, DType::f32);
  return run(attention_combine, grid, stream, a.partial, a.out, Size(rows), Size(a.shape.e), Size(splits),
             uint32_t(a.dtype) + kAnyF32);
}

}  // namespace

int64_t attention_partial(const AttentionShape& shape) {
  const int64_t splits = attention_splits(shape);
  return splits == 1 ? 0 : shape.outer * shape.inner * shape.h * shape.t * splits * (shape.e + 2);
}

cudaError_t launch_attention(const Attention& a, cudaStream_t stream) {
  if (by_tiles(a.shape)) return attention_by_tiles(a, stream);
  const int64_t splits = attention_splits(a.shape);
  const cudaError_t code = attention_by_rows(a, splits, stream);
  return code != cudaSuccess || splits == 1 ? code : combine(a, splits, stream);
}

}  // namespace airllm::cuda
