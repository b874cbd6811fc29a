// Ops whose rows, the last axis, are computed each on its own.
#pragma once
#include "../cpu/threaded_rows.h"
#include "broadcast.h"
#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

// The rows of an array that has some.
inline cpu::threaded::AllRows rows_of(const Array& x) {
  const int64_t dim = x.axis(1);
  return {x.dtype, dim ? x.size / dim : 0, dim};
}

inline cpu::AnyValues values_of(const Array& a) { return {a.data, a.dtype}; }

inline void check_has_rows(const Op& op, const Array& x) {
  if (x.ndim < 1) op.wrong_shape("x", x, "(... d)");
}

// A weight (d,) of x's dtype or float32.
inline Array weight_of(const Op& op, const char* name, PyObject* object, const Array& x) {
  const Array weight = array(op, name, object);
  check_dtype(op, name, weight, x, true);
  check_has_rows(op, x);
  if (weight.ndim != 1 || weight.size != x.axis(1))
    op.wrong_shape(name, weight, "(d) with d=" + std::to_string(x.axis(1)));
  return weight;
}

inline PyObject* rms_norm(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "weight", "eps", "out"};
  PyObject* values[4];
  place(op, values, names, 3, 2, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  const Array weight = weight_of(op, "weight", values[1], x);
  const float eps = number(op, "eps", values[2], 1e-6f);
  results::Result out =
      results::result(op, values[3], x, x.ndim, x.shape, {{"x", &x, true}, {"weight", &weight, false}});
  if (!x.size) return out.give();
  run(x.size,
      [&] { cpu::threaded::rms_norm(*active.load(), rows_of(x), out.data, x.data, values_of(weight), eps); });
  return out.give();
}

inline PyObject* add_rms_norm(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "residual", "weight", "eps", "out"};
  PyObject* values[5];
  place(op, values, names, 4, 3, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  const Array residual = array(op, "residual", values[1]);
  check_dtype(op, "residual", residual, x, false);
  const Array weight = weight_of(op, "weight", values[2], x);
  if (!same_shape(residual, x.ndim, x.shape))
    op.wrong_shape(
        "residual", residual,
        "(... d) with d=" + std::to_string(x.axis(1)) + ", ...=" + shape_text(x.ndim - 1, x.shape));
  const float eps = number(op, "eps", values[3], 1e-6f);
  const auto outs = several_outs<2>(op, values[4]);
  const Input in_x{"x", &x, true}, in_residual{"residual", &residual, true},
      in_weight{"weight", &weight, false};
  results::Result sum =
      results::result(op, outs[0], x, x.ndim, x.shape, {in_x, in_residual, in_weight}, "out[0]");
  results::Result normed = results::result(op, outs[1], x, x.ndim, x.shape,
                                           {in_x, in_residual, in_weight, {"out[0]", &sum, false}}, "out[1]");
  if (x.size)
    run(x.size, [&] {
      cpu::threaded::add_rms_norm(*active.load(), rows_of(x), sum.data, normed.data, x.data, residual.data,
                                  values_of(weight), eps);
    });
  return results::both(values[4], sum, normed);
}

inline PyObject* layer_norm(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "weight", "bias", "eps", "out"};
  PyObject* values[5];
  place(op, values, names, 4, 2, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  const Array weight = weight_of(op, "weight", values[1], x);
  const Array bias = present(values[2]) ? weight_of(op, "bias", values[2], x) : Array{};
  const float eps = number(op, "eps", values[3], 1e-5f);
  results::Result out =
      results::result(op, values[4], x, x.ndim, x.shape,
                      {{"x", &x, true}, {"weight", &weight, false}, {"bias", &bias, false}});
  if (!x.size) return out.give();
  run(x.size, [&] {
    cpu::threaded::layer_norm(*active.load(), rows_of(x), out.data, x.data, values_of(weight),
                              values_of(bias), eps);
  });
  return out.give();
}

// The rows of an array (... n) whose leading axes are broadcast to those of x.
inline Array broadcast_rows(const Op& op, const char* name, PyObject* object, const Array& x,
                            bool may_be_bool, const std::string& axes, Steps& steps) {
  const Array rows = strided(op, name, object, may_be_bool);
  if (!broadcast(steps, rows, 1, x.ndim - 1, x.shape))
    op.wrong_shape(name, rows, axes + (rows.ndim > 1 ? ", ...=" + shape_text(x.ndim - 1, x.shape) : ""));
  return rows;
}

inline PyObject* softmax(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "scale", "mask", "out"};
  PyObject* values[4];
  place(op, values, names, 3, 1, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  check_has_rows(op, x);
  const float scale = number(op, "scale", values[1], 1.f);
  Array mask;
  std::array<Steps, 1> steps;
  if (present(values[2])) {
    const std::string axes = "(... d) with d=" + std::to_string(x.axis(1));
    mask = broadcast_rows(op, "mask", values[2], x, true, axes, steps[0]);
    if (mask.axis(1) != x.axis(1)) op.wrong_shape("mask", mask, axes);
  }
  results::Result out =
      results::result(op, values[3], x, x.ndim, x.shape, {{"x", &x, true}, {"mask", &mask, false}});
  if (!x.size) return out.give();
  const cpu::Kernels& kernels = *active.load();
  if (!mask.data) {
    run(x.size, [&] { cpu::threaded::softmax(kernels, rows_of(x), out.data, x.data, scale); });
    return out.give();
  }
  const Walk<1> walk(x.ndim - 1, x.shape, steps);
  run(x.size,
      [&] { cpu::threaded::softmax(kernels, rows_of(x), out.data, x.data, scale, values_of(mask), walk); });
  return out.give();
}

inline PyObject* apply_rope(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "cos", "sin", "interleaved", "out"};
  PyObject* values[5];
  place(op, values, names, 4, 3, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  check_has_rows(op, x);
  std::array<Steps, 2> steps;
  const Array cos = broadcast_rows(op, "cos", values[1], x, false, "(... r)", steps[0]);
  const int64_t pairs = cos.axis(1);
  if (2 * pairs > x.axis(1))
    op.wrong_shape(
        "cos", cos,
        "(... r) with 2 r at most d, found r=" + std::to_string(pairs) + ", d=" + std::to_string(x.axis(1)));
  const std::string axes = "(... r) with r=" + std::to_string(pairs);
  const Array sin = broadcast_rows(op, "sin", values[2], x, false, axes, steps[1]);
  if (sin.axis(1) != pairs) op.wrong_shape("sin", sin, axes);
  const bool interleaved = flag(op, "interleaved", values[3], false);
  results::Result out = results::result(op, values[4], x, x.ndim, x.shape,
                                        {{"x", &x, true}, {"cos", &cos, false}, {"sin", &sin, false}});
  if (!x.size) return out.give();
  const Walk<2> walk(x.ndim - 1, x.shape, steps);
  run(x.size, [&] {
    cpu::threaded::apply_rope(*active.load(), rows_of(x), out.data, x.data, values_of(cos), values_of(sin),
                              walk, pairs, interleaved);
  });
  return out.give();
}

}  // namespace ops
