// Element-wise ops: each element of the result follows from the same element of the arrays.
#pragma once
#include "../cpu/threaded_elements.h"
#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

inline PyObject* mapped(const Op& op, PyObject* x_, PyObject* out_, cpu::MapKernel* const* kernels) {
  const Array x = array(op, "x", x_);
  results::Result out = results::result(op, out_, x, x.ndim, x.shape, {{"x", &x, true}});
  run(x.size, [&] { cpu::threaded::map(kernels[x.dtype], x.dtype, out.data, x.data, x.size); });
  return out.give();
}

inline PyObject* gated(const Op& op, PyObject* gate_, PyObject* up_, PyObject* out_,
                       cpu::PairKernel* const* kernels) {
  const Array gate = array(op, "gate", gate_);
  const Array up = array(op, "up", up_);
  check_dtype(op, "up", up, gate, false);
  if (!same_shape(up, gate.ndim, gate.shape))
    op.wrong_shape("up", up, "(...) with ...=" + shape_text(gate.ndim, gate.shape));
  results::Result out =
      results::result(op, out_, gate, gate.ndim, gate.shape, {{"gate", &gate, true}, {"up", &up, true}});
  run(gate.size,
      [&] { cpu::threaded::map(kernels[gate.dtype], gate.dtype, out.data, gate.data, up.data, gate.size); });
  return out.give();
}

// Which form of the Gaussian error linear unit.
inline size_t form(const Op& op, PyObject* value) {
  static const char* const forms[] = {"tanh", "none"};
  return choice(op, "approximate", value, forms);
}

inline PyObject* silu(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "out"};
  PyObject* values[2];
  place(op, values, names, 1, 1, args, given, keywords);
  return mapped(op, values[0], values[1], active.load()->elements.silu);
}

inline PyObject* gelu(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "approximate", "out"};
  PyObject* values[3];
  place(op, values, names, 2, 1, args, given, keywords);
  return mapped(op, values[0], values[2], active.load()->elements.gelu[form(op, values[1])]);
}

inline PyObject* swiglu(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"gate", "up", "out"};
  PyObject* values[3];
  place(op, values, names, 2, 2, args, given, keywords);
  return gated(op, values[0], values[1], values[2], active.load()->elements.swiglu);
}

inline PyObject* geglu(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"gate", "up", "approximate", "out"};
  PyObject* values[4];
  place(op, values, names, 3, 2, args, given, keywords);
  return gated(op, values[0], values[1], values[3], active.load()->elements.geglu[form(op, values[2])]);
}

}  // namespace ops
