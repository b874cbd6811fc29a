// Element-wise ops.
#pragma once

#include "ops.h"

namespace airllm::cuda {

using LaunchUnary = cudaError_t (*)(void*, const void*, DType, int64_t, cudaStream_t);
using LaunchGate = cudaError_t (*)(void*, const void*, const void*, DType, int64_t, cudaStream_t);

constexpr const char* kApproximations[] = {"tanh", "none"};

inline py::object unary(const Op& op, LaunchUnary launch, PyObject* x_given, PyObject* out_given) {
  Call call(op);
  const Operand& x = call.array("x", "...", x_given, {kFloats});
  const Operand& out = call.result(out_given, x.dtype, x.shape, {&x});
  return call.run([&](cudaStream_t stream) { return launch(out.at, x.at, x.dtype, x.size, stream); });
}

inline py::object gated(const Op& op, LaunchGate launch, PyObject* gate_given, PyObject* up_given,
                        PyObject* out_given) {
  Call call(op);
  const Operand& gate = call.array("gate", "...", gate_given, {kFloats});
  const Operand& up = call.array("up", "...", up_given, {kFloats});
  check_dtype(op, up, gate, false);
  const Operand& out = call.result(out_given, gate.dtype, gate.shape, {&gate, &up});
  return call.run(
      [&](cudaStream_t stream) { return launch(out.at, gate.at, up.at, gate.dtype, gate.size, stream); });
}

inline py::object silu(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[2];
  arguments::place(op, values, {"x", "out"}, 1, 1, args, given, keywords);
  return unary(op, launch_silu, values[0], values[1]);
}

inline py::object gelu(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[3];
  arguments::place(op, values, {"x", "approximate", "out"}, 2, 1, args, given, keywords);
  const size_t form = arguments::choice(op, "approximate", values[1], kApproximations);
  return unary(op, form == 0 ? launch_gelu : launch_gelu_erf, values[0], values[2]);
}

inline py::object swiglu(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[3];
  arguments::place(op, values, {"gate", "up", "out"}, 2, 2, args, given, keywords);
  return gated(op, launch_swiglu, values[0], values[1], values[2]);
}

inline py::object geglu(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[4];
  arguments::place(op, values, {"gate", "up", "approximate", "out"}, 3, 2, args, given, keywords);
  const size_t form = arguments::choice(op, "approximate", values[2], kApproximations);
  return gated(op, form == 0 ? launch_geglu : launch_geglu_erf, values[0], values[1], values[3]);
}

}  // namespace airllm::cuda
