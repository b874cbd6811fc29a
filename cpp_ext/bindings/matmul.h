// Products of matrices.
#pragma once
#include <cstring>

#include "../cpu/threaded_matmul.h"
#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

// A dense float32 product is NumPy's BLAS: a second one in the process would fight it for the cores.
// Where it overflows it is infinite, without a warning, as on every backend.
inline void numpy_matmul(PyObject* a, PyObject* b, PyObject* out) {
  PyObject* const matmul = kept_object([] { return py::module_::import("numpy").attr("matmul"); });
  PyObject* const errstate = kept_object([] { return py::module_::import("numpy").attr("errstate"); });
  PyObject* const all = kept_object([] { return py::make_tuple("all"); });
  static PyObject* const ignore = py::str("ignore").release().ptr();
  static PyObject* const enter = PyUnicode_InternFromString("__enter__");
  static PyObject* const exit = PyUnicode_InternFromString("__exit__");
  const py::object quiet = steal(PyObject_Vectorcall(errstate, &ignore, 0, all));
  steal(PyObject_CallMethodNoArgs(quiet.ptr(), enter));
  PyObject* const operands[] = {a, b, out};
  const auto same = py::reinterpret_steal<py::object>(
      unless_ended([&] { return PyObject_Vectorcall(matmul, operands, 3, nullptr); }));
  {
    const py::error_scope failed;  // keeps the error while errstate is left
    PyObject* const none[] = {quiet.ptr(), Py_None, Py_None, Py_None};
    steal(PyObject_VectorcallMethod(exit, none, 4, nullptr));
  }
  if (!same) throw py::error_already_set();
  calls.fetch_add(1, std::memory_order_relaxed);
}

inline void multiply(const Array& out, const Array& a, const Array& b, bool shared) {
  if (!out.size) return;
  const int64_t n = b.axis(1), k = a.axis(1), matrices = shared ? 1 : out.size / (a.axis(2) * n),
                m = out.size / n / matrices, size = itemsize(a.dtype);
  const bool own = m <= cpu::threaded::kFewRows && matrices == 1;
  if (a.dtype == cpu::kFloat32 && !own && k) return numpy_matmul(a.object, b.object, out.object);
  cpu::threaded::Product product{a.dtype, out.data, a.data, b.data, m, n, k};
  run(matrices * product.work(), [&] {
    for (int64_t i = 0; i < matrices; ++i) {
      cpu::threaded::matmul(*active.load(), product);
      product.out += m * n * size;
      product.a += m * k * size;
      product.b += k * n * size;
    }
  });
}

inline std::string axes_of_b(const Array& a, bool with_batch) {
  std::string known = "(... k n) with k=" + std::to_string(a.axis(1));
  if (with_batch) known += ", ...=" + shape_text(a.ndim - 2, a.shape);
  return known;
}

inline PyObject* matmul(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"a", "b", "out"};
  PyObject* values[3];
  place(op, values, names, 2, 2, args, given, keywords);
  const Array a = array(op, "a", values[0]);
  const Array b = array(op, "b", values[1]);
  check_dtype(op, "b", b, a, false);
  if (a.ndim < 2) op.wrong_shape("a", a, "(... m k)");
  if (b.ndim < 2 || b.axis(2) != a.axis(1)) op.wrong_shape("b", b, axes_of_b(a, false));
  const bool shared = b.ndim == 2;
  if (!shared && (b.ndim != a.ndim || std::memcmp(a.shape, b.shape, sizeof(*a.shape) * (a.ndim - 2)) != 0))
    op.wrong_shape("b", b, axes_of_b(a, true));
  std::vector<py::ssize_t> shape(a.shape, a.shape + a.ndim);
  shape.back() = b.axis(1);
  results::Result out =
      results::result(op, values[2], a, a.ndim, shape.data(), {{"a", &a, false}, {"b", &b, false}});
  multiply(out, a, b, shared);
  return out.give();
}

}  // namespace ops
