// Products of matrices.
#pragma once

#include "matmul.h"
#include "ops.h"

namespace airllm::cuda {

// A sum over nothing is zero, whatever lies in the result's memory.
inline cudaError_t multiply(const Operand& out, const Operand& a, const Operand& b, const Product& p,
                            Cublas* cublas, int device, cudaStream_t stream) {
  if (p.k == 0) return cudaMemsetAsync(out.at, 0, size_t(out.nbytes()), stream);
  if (!cublas) return launch_matmul(out.at, a.at, b.at, a.dtype, p, stream);
  cublas->matmul(out.at, a.at, b.at, a.dtype, p, device, stream);
  return cudaSuccess;
}

inline py::object matmul(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[3];
  arguments::place(op, values, {"a", "b", "out"}, 2, 2, args, given, keywords);
  Call call(op);
  const Operand& a = call.array("a", "... m k", values[0], {kFloats});
  const Operand& b = call.array("b", "... k n", values[1], {kFloats}, Leading::shared);
  check_dtype(op, b, a, false);
  const Operand& out = call.result(values[2], a.dtype, call.axes.shape({"m", "n"}));
  const Axes& axes = call.axes;
  const Product product{count_of(axes.leading), axes["m"], axes["n"], axes["k"], b.ndim() == 2};
  Cublas* const cublas = chosen_cublas();
  return call.run([&, device = call.device()](cudaStream_t stream) {
    return multiply(out, a, b, product, cublas, device, stream);
  });
}

}  // namespace airllm::cuda
