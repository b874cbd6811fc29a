// Ops whose rows, the last axis, are computed each on its own.
#pragma once
#include "broadcast.h"
#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

// Rows [begin, end) of an array that has rows, and what a kernel needs to know about them.
inline cpu::Rows part(int64_t begin, int64_t end, const Array& out) {
  return {end - begin, out.axis(1), out.nbytes() > kStreamedBytes};
}

// An array's bytes per row.
inline int64_t row_bytes(const Array& x) { return x.axis(1) * itemsize(x.dtype); }

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

// Runs work(begin, end) over the rows of x, which has some.
template <class Work>
inline void run_rows(const Array& x, const Work& work) {
  run(x.size / x.axis(1), x.axis(1), 1, work);
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
  cpu::RmsNormKernel* const kernel = active.load()->rows.rms_norm[x.dtype][weight.dtype == cpu::kFloat32];
  const int64_t row = row_bytes(x);
  run_rows(x, [&](int64_t begin, int64_t end) {
    kernel(out.data + begin * row, x.data + begin * row, weight.data, part(begin, end, out), eps);
  });
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
  if (x.size) {
    cpu::AddRmsNormKernel* const kernel = active.load()->rows.add_rms_norm[x.dtype];
    const int64_t row = row_bytes(x);
    run_rows(x, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * row;
      kernel(sum.data + at, normed.data + at, x.data + at, residual.data + at, values_of(weight),
             part(begin, end, sum), eps);
    });
  }
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
  cpu::LayerNormKernel* const kernel = active.load()->rows.layer_norm[x.dtype];
  const int64_t row = row_bytes(x);
  run_rows(x, [&](int64_t begin, int64_t end) {
    kernel(out.data + begin * row, x.data + begin * row, values_of(weight), values_of(bias),
           part(begin, end, out), eps);
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

inline cpu::AnyRows rows_from(const Array& rows, int64_t offset, int64_t step) {
  return {{rows.data + offset, rows.dtype}, step};
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
  cpu::SoftmaxKernel* const kernel = active.load()->rows.softmax[x.dtype];
  const int64_t row = row_bytes(x);
  const auto rows = [&](int64_t begin, int64_t end, cpu::AnyRows keep) {
    kernel(out.data + begin * row, x.data + begin * row, keep, part(begin, end, out), scale);
  };
  if (!mask.data) {
    run_rows(x, [&](int64_t begin, int64_t end) { rows(begin, end, {}); });
    return out.give();
  }
  const Walk<1> walk(x.ndim - 1, x.shape, steps);
  run_rows(x, [&](int64_t begin, int64_t end) {
    walk.runs(begin, end, [&](int64_t first, int64_t count, const std::array<int64_t, 1>& offsets) {
      rows(first, first + count, rows_from(mask, offsets[0], walk.step(0)));
    });
  });
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
  cpu::RopeKernel* const kernel = active.load()->rows.rope[interleaved][x.dtype];
  const Walk<2> walk(x.ndim - 1, x.shape, steps);
  const int64_t row = row_bytes(x);
  run_rows(x, [&](int64_t begin, int64_t end) {
    walk.runs(begin, end, [&](int64_t first, int64_t count, const std::array<int64_t, 2>& offsets) {
      kernel(out.data + first * row, x.data + first * row, rows_from(cos, offsets[0], walk.step(0)),
             rows_from(sin, offsets[1], walk.step(1)), part(first, first + count, out), pairs);
    });
  });
  return out.give();
}

}  // namespace ops
