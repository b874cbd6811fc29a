// Matrix products.
#pragma once
#include <cstring>

#include "../../cpu/threads/parallel_matmul.h"
#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

// A dense float32 product uses NumPy's BLAS: a second BLAS in the process would compete with it for the
// cores. An overflow gives infinity, without a warning, as on every backend.
inline void numpy_matmul(PyObject* a, PyObject* b, PyObject* out) {
  PyObject* const matmul = kept_object([] { return import_attribute("numpy", "matmul"); });
  PyObject* const errstate = kept_object([] { return import_attribute("numpy", "errstate"); });
  PyObject* const all = kept_object([] { return py::make_tuple("all"); });
  static PyObject* const ignore = py::str("ignore").release().ptr();
  static PyObject* const enter = PyUnicode_InternFromString("__enter__");
  static PyObject* const exit = PyUnicode_InternFromString("__exit__");
  const py::object quiet = call_into_python([=] { return PyObject_Vectorcall(errstate, &ignore, 0, all); });
  call_into_python([&] { return PyObject_CallMethodNoArgs(quiet.ptr(), enter); });
  PyObject* const operands[] = {a, b, out};
  const auto same = py::reinterpret_steal<py::object>(
      unless_ended([&] { return PyObject_Vectorcall(matmul, operands, 3, nullptr); }));
  {
    const py::error_scope failed;  // keeps the error while errstate exits
    PyObject* const none[] = {quiet.ptr(), Py_None, Py_None, Py_None};
    call_into_python([&] { return PyObject_VectorcallMethod(exit, none, 4, nullptr); });
  }
  if (!same) throw py::error_already_set();
  calls.fetch_add(1, std::memory_order_relaxed);
}

inline void matmul(const Array& out, const Array& a, const Array& b) {
  const bool shared = b.ndim == 2;
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

}  // namespace ops
