// The launchers of products. Part of kernels.cu.
#pragma once

#include "grids.h"

namespace airllm::cuda {
namespace {

cudaError_t matmul_by_rows(void* out, const void* a, const void* b, DType dtype, const Product& p,
                           cudaStream_t stream) {
  const Grid grid{p.batch * p.m * ((p.n + 31) / 32), 256};
  RUN_OF_DTYPE(dtype, matmul_row, , grid, stream, a, b, out, Size(p.batch), Size(p.m), Size(p.n), Size(p.k));
}

int64_t tiles(const Product& p, int64_t size) {
  return p.batch * ((p.m + size - 1) / size) * ((p.n + size - 1) / size);
}

cudaError_t matmul_by_tiles64(void* out, const void* a, const void* b, DType dtype, const Product& p,
                              cudaStream_t stream) {
  const Grid grid{tiles(p, 64), 256};
  RUN_OF_DTYPE(dtype, matmul, _tile64, grid, stream, a, b, out, Size(p.batch), Size(p.m), Size(p.n),
               Size(p.k));
}

cudaError_t matmul_by_tiles128(void* out, const void* a, const void* b, DType dtype, const Product& p,
                               cudaStream_t stream) {
  const Grid grid{tiles(p, 128), 256};
  RUN_OF_DTYPE(dtype, matmul, _tile128, grid, stream, a, b, out, Size(p.batch), Size(p.m), Size(p.n),
               Size(p.k));
}

}  // namespace

cudaError_t launch_matmul(void* out, const void* a, const void* b, DType dtype, const Product& product,
                          cudaStream_t stream) {
  Product p = product;
  if (p.b_is_shared) p = {1, p.batch * p.m, p.n, p.k, true};  // the batch becomes more rows of a
  if (p.m <= 4) return matmul_by_rows(out, a, b, dtype, p, stream);
  const bool fills = tiles(p, 128) >= 2 * int64_t(multiprocessors());  // larger tiles read less memory
  return fills ? matmul_by_tiles128(out, a, b, dtype, p, stream)
               : matmul_by_tiles64(out, a, b, dtype, p, stream);
}

}  // namespace airllm::cuda
