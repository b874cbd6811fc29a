// Matrix products.
#pragma once

#include "gemm.h"
#include "ops.h"

namespace airllm::cuda {

// An empty sum is zero, whatever the result's memory contains.
inline cudaError_t multiply(const Operand& out, const Operand& a, const Operand& b, const Product& p,
                            Cublas* cublas, int device, cudaStream_t stream) {
  if (p.k == 0) return cudaMemsetAsync(out.at, 0, size_t(out.nbytes()), stream);
  if (!cublas) return launch_matmul(out.at, a.at, b.at, a.dtype, p, stream);
  cublas->matmul(out.at, a.at, b.at, a.dtype, p, device, stream);
  return cudaSuccess;
}

inline Launch matmul(const Call& call, const Operand& out, const Operand& a, const Operand& b) {
  const Product product{count_of(call.leading), a.axis(2), b.axis(1), a.axis(1), b.ndim() == 2};
  return [&, product, cublas = chosen_cublas(), device = call.device()](cudaStream_t stream) {
    return multiply(out, a, b, product, cublas, device, stream);
  };
}

}  // namespace airllm::cuda
