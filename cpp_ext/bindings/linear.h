// Products with weights (n, k), rows as checkpoints have them, in the form in which they are stored.
#pragma once
#include "../cpu/threaded_linear.h"
#include "formats.h"
#include "matmul.h"

namespace [[gnu::visibility("hidden")]] ops {

// A dense (rows, columns) array of x's dtype on someone else's memory.
inline py::object matrix_of(const Array& like, const char* data, int64_t rows, int64_t columns) {
  const py::ssize_t shape[] = {rows, columns};
  return steal(
      results::new_array(py::detail::array_proxy(like.object)->descr, 2, shape, const_cast<char*>(data)));
}

// A dense float32 product of many rows is NumPy's BLAS, as in matmul().
inline void linear_by_numpy(const Array& out, const Array& x, const cpu::threaded::Linear& call) {
  const py::object rows = matrix_of(x, x.data, call.m, call.k),
                   result = matrix_of(x, out.data, call.m, call.n),
                   columns = matrix_of(x, call.weight, call.n, call.k).attr("T");
  numpy_matmul(rows.ptr(), columns.ptr(), result.ptr());
  cpu::threaded::add_bias(active.load()->stored, call);
}

// x (..., k) with weight (n, k), whose ranks and k the caller has checked.
inline void multiply_stored(const Array& out, const Array& x, const Stored& weight, const float* bias) {
  if (!out.size) return;
  const int64_t n = weight.axis(2), k = weight.axis(1);
  const cpu::threaded::Linear call{x.dtype,      out.data, x.data, weight.format, weight.data(), bias,
                                   out.size / n, n,        k};
  const bool floats = call.format == cpu::kF32 && call.dtype == cpu::kFloat32;
  if (floats && k && call.m > cpu::rows_as_stored(call.format)) return linear_by_numpy(out, x, call);
  run(call.work(), [&] { cpu::threaded::linear(*active.load(), call); });
}

inline std::vector<float> bias_of(const Op& op, PyObject* object, int64_t n, Array* bias) {
  if (!present(object)) return {};
  *bias = array(op, "bias", object);
  if (bias->ndim != 1 || bias->size != n) op.wrong_shape("bias", *bias, "(n) with n=" + std::to_string(n));
  std::vector<float> wide(n);
  active.load()->stored.widen(bias->dtype, wide.data(), bias->data, n);
  return wide;
}

inline PyObject* linear(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "weight", "bias", "out"};
  PyObject* values[4];
  place(op, values, names, 3, 2, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  const Stored weight = stored(op, "weight", values[1]);
  if (x.ndim < 1) op.wrong_shape("x", x, "(... k)");
  const int64_t k = x.axis(1);
  if (weight.ndim != 2 || weight.axis(1) != k)
    op.wrong_value("weight", "has shape " + weight.shape_text(), "(n k) with k=" + std::to_string(k));
  Array bias;
  const std::vector<float> wide_bias = bias_of(op, values[2], weight.axis(2), &bias);
  std::vector<py::ssize_t> shape(x.shape, x.shape + x.ndim);
  shape.back() = weight.axis(2);
  results::Result out = results::result(
      op, values[3], x, x.ndim, shape.data(),
      {{"x", &x, false}, {"weight", &weight.array, false}, {"bias", bias.object ? &bias : &x, false}});
  multiply_stored(out, x, weight, wide_bias.empty() ? nullptr : wide_bias.data());
  return out.give();
}

inline PyObject* matmul_vec(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"w", "x", "out"};
  PyObject* values[3];
  place(op, values, names, 2, 2, args, given, keywords);
  const Stored w = stored(op, "w", values[0]);
  const Array x = array(op, "x", values[1]);
  if (w.ndim != 2) op.wrong_value("w", "has shape " + w.shape_text(), "(n k)");
  if (x.ndim != 1 || x.size != w.axis(1)) op.wrong_shape("x", x, "(k) with k=" + std::to_string(w.axis(1)));
  const py::ssize_t n = w.axis(2);
  results::Result out = results::result(op, values[2], x, 1, &n, {{"w", &w.array, false}, {"x", &x, false}});
  multiply_stored(out, x, w, nullptr);
  return out.give();
}

}  // namespace ops
