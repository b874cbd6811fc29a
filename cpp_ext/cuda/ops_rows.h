// Ops whose rows, the last axis, are computed each on its own.
#pragma once

#include "ops.h"

namespace airllm::cuda {

inline py::object rms_norm(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[4];
  arguments::place(op, values, {"x", "weight", "eps", "out"}, 3, 2, args, given, keywords);
  const float eps = arguments::number(op, "eps", values[2], 1e-6f);
  Call call(op);
  const Operand& x = call.array("x", "... d", values[0], {kFloats});
  const Operand& weight = call.array("weight", "d", values[1], {kFloats});
  check_dtype(op, weight, x, true);
  const Operand& out = call.result(values[3], x.dtype, x.shape, {&x});
  return call.run([&](cudaStream_t stream) {
    return launch_rms_norm(out.at, x.at, weight.at, x.dtype, weight.dtype, rows_of(x), x.axis(1), eps,
                           stream);
  });
}

inline py::object softmax(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[2];
  arguments::place(op, values, {"x", "out"}, 1, 1, args, given, keywords);
  Call call(op);
  const Operand& x = call.array("x", "... d", values[0], {kFloats});
  const Operand& out = call.result(values[1], x.dtype, x.shape, {&x});
  return call.run([&](cudaStream_t stream) {
    return launch_softmax(out.at, x.at, x.dtype, rows_of(x), x.axis(1), stream);
  });
}

}  // namespace airllm::cuda
