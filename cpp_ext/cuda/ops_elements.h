// Element-wise ops.
#pragma once

#include "ops.h"

namespace airllm::cuda {

using LaunchElements = cudaError_t (*)(void*, const void*, DType, int64_t, cudaStream_t);

inline py::object elementwise(const Op& op, LaunchElements launch, PyObject* const* args, Py_ssize_t given,
                              PyObject* keywords) {
  PyObject* values[2];
  arguments::place(op, values, {"x", "out"}, 1, 1, args, given, keywords);
  Call call(op);
  const Operand& x = call.array("x", "...", values[0], {kFloats});
  const Operand& out = call.result(values[1], x.dtype, x.shape, {&x});
  return call.run([&](cudaStream_t stream) { return launch(out.at, x.at, x.dtype, x.size, stream); });
}

inline py::object silu(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  return elementwise(op, launch_silu, args, given, keywords);
}

inline py::object gelu(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  return elementwise(op, launch_gelu, args, given, keywords);
}

}  // namespace airllm::cuda
