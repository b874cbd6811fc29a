// Ops whose rows, the last axis, are computed each on its own.
#pragma once

#include "broadcast.h"
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

inline py::object layer_norm(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[5];
  arguments::place(op, values, {"x", "weight", "bias", "eps", "out"}, 4, 2, args, given, keywords);
  const float eps = arguments::number(op, "eps", values[3], 1e-5f);
  Call call(op);
  const Operand& x = call.array("x", "... d", values[0], {kFloats});
  const Operand& weight = call.array("weight", "d", values[1], {kFloats});
  check_dtype(op, weight, x, true);
  const Operand& bias = call.optional("bias", "d", values[2], {kFloats});
  if (bias) check_dtype(op, bias, x, true);
  const Operand& out = call.result(values[4], x.dtype, x.shape, {&x});
  return call.run([&](cudaStream_t stream) {
    return launch_layer_norm(out.at, x.at, any_array(weight), any_array(bias), x.dtype, rows_of(x), x.axis(1),
                             eps, stream);
  });
}

inline py::object add_rms_norm(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[5];
  arguments::place(op, values, {"x", "residual", "weight", "eps", "out"}, 4, 3, args, given, keywords);
  const float eps = arguments::number(op, "eps", values[3], 1e-6f);
  const auto outs = arguments::several_outs<2>(op, values[4]);
  Call call(op);
  const Operand& x = call.array("x", "... d", values[0], {kFloats});
  const Operand& residual = call.array("residual", "... d", values[1], {kFloats});
  check_dtype(op, residual, x, false);
  const Operand& weight = call.array("weight", "d", values[2], {kFloats});
  check_dtype(op, weight, x, true);
  const Operand& sum = call.result(outs[0], x.dtype, x.shape, {&x, &residual}, "out[0]");
  const Operand& normed = call.result(outs[1], x.dtype, x.shape, {&x, &residual}, "out[1]");
  return call.run(
      [&](cudaStream_t stream) {
        return launch_add_rms_norm(sum.at, normed.at, x.at, residual.at, any_array(weight), x.dtype,
                                   rows_of(x), x.axis(1), eps, stream);
      },
      values[4]);
}

inline py::object softmax(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[4];
  arguments::place(op, values, {"x", "scale", "mask", "out"}, 3, 1, args, given, keywords);
  const float scale = arguments::number(op, "scale", values[1], 1.0f);
  Call call(op);
  const Operand& x = call.array("x", "... d", values[0], {kFloats});
  const Operand& mask = call.mask("mask", "... d", values[2]);
  const Operand& out = call.result(values[3], x.dtype, x.shape, {&x});
  const Rows4 rows = rows4(op, call.axes.leading, mask, 1);
  return call.run([&](cudaStream_t stream) {
    if (!mask && scale == 1.0f) return launch_softmax(out.at, x.at, x.dtype, rows_of(x), x.axis(1), stream);
    return launch_masked_softmax(out.at, x.at, any_array(mask), rows, x.dtype, rows_of(x), x.axis(1), scale,
                                 stream);
  });
}

inline py::object apply_rope(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[5];
  arguments::place(op, values, {"x", "cos", "sin", "interleaved", "out"}, 4, 3, args, given, keywords);
  const bool interleaved = arguments::flag(op, "interleaved", values[3], false);
  Call call(op);
  const Operand& x = call.array("x", "... d", values[0], {kFloats});
  const Operand& cos = call.array("cos", "... r", values[1], {kFloats}, Leading::broadcast);
  const int64_t r = call.axes["r"];
  call.axes.require(2 * r <= x.axis(1), cos, "... r", "2 r at most d", "r", "d");
  const Operand& sin = call.array("sin", "... r", values[2], {kFloats}, Leading::broadcast);
  if (strides_along(call.axes.leading, sin, 1) != strides_along(call.axes.leading, cos, 1))
    not_implemented(op, sin, "is broadcast unlike cos", "the same leading axes");
  const Operand& out = call.result(values[4], x.dtype, x.shape, {&x});
  const Rows4 rows = rows4(op, call.axes.leading, cos, 1);
  return call.run([&](cudaStream_t stream) {
    return launch_apply_rope(out.at, x.at, any_array(cos), any_array(sin), rows, x.dtype, rows_of(x),
                             x.axis(1), r, interleaved, stream);
  });
}

}  // namespace airllm::cuda
