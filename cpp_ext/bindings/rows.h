// Ops whose rows, the last axis, are computed each on its own.
#pragma once
#include "broadcast.h"
#include "run.h"

namespace ops {

inline PyObject* softmax(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "out"};
  PyObject* values[2];
  place(op, values, names, 1, 1, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  if (x.ndim < 1) op.wrong_shape("x", x, "(... d)");
  results::Result out = results::result(op, values[1], x, x.ndim, x.shape, {{"x", &x, true}});
  if (!x.size) return out.give();
  cpu::RowsKernel* const kernel = active.load()->softmax[x.dtype];
  const int64_t dim = x.axis(1), row = dim * itemsize(x.dtype);
  run(x.size / dim, dim, 1, [&](int64_t begin, int64_t end) {
    kernel(out.data + begin * row, x.data + begin * row, end - begin, dim, out.nbytes() > kStreamedBytes);
  });
  return out.give();
}

inline PyObject* rms_norm(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "weight", "eps", "out"};
  PyObject* values[4];
  place(op, values, names, 3, 2, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  const Array weight = array(op, "weight", values[1]);
  check_dtype(op, "weight", weight, x, true);
  if (x.ndim < 1) op.wrong_shape("x", x, "(... d)");
  const int64_t dim = x.axis(1), row = dim * itemsize(x.dtype);
  if (weight.ndim != 1 || weight.size != dim)
    op.wrong_shape("weight", weight, "(d) with d=" + std::to_string(dim));
  const float eps = number(op, "eps", values[2], 1e-6f);
  results::Result out =
      results::result(op, values[3], x, x.ndim, x.shape, {{"x", &x, true}, {"weight", &weight, false}});
  if (!x.size) return out.give();
  cpu::RmsNormKernel* const kernel = active.load()->rms_norm[x.dtype][weight.dtype == cpu::kFloat32];
  run(x.size / dim, dim, 1, [&](int64_t begin, int64_t end) {
    kernel(out.data + begin * row, x.data + begin * row, weight.data, end - begin, dim, eps,
           out.nbytes() > kStreamedBytes);
  });
  return out.give();
}

}  // namespace ops
