// Allocates results: NumPy's memory for small ones, pooled buffers for large ones.
#pragma once
#include "../cpu/threads/buffer_pool.h"
#include "arguments.h"

namespace results {

namespace py = pybind11;
using cpu::Buffer;
using cpu::kept_buffers;
using cpu::kLarge;

inline PyObject* new_array(PyObject* descr, int ndim, const py::ssize_t* shape, void* data) {
  const auto& numpy = py::detail::npy_api::get();
  Py_INCREF(descr);  // NumPy steals this reference
  PyObject* array =
      numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, descr, ndim, shape, nullptr, data,
                                  data ? py::detail::npy_api::NPY_ARRAY_WRITEABLE_ : 0, nullptr);
  if (!array) throw py::error_already_set();
  return array;
}

inline PyObject* new_large_array(PyObject* descr, int ndim, const py::ssize_t* shape, size_t bytes) {
  const Buffer buffer = kept_buffers().take(bytes);
  PyObject* const owner = PyCapsule_New(buffer.data, nullptr, [](PyObject* capsule) {
    const size_t size = reinterpret_cast<size_t>(PyCapsule_GetContext(capsule));
    kept_buffers().give({PyCapsule_GetPointer(capsule, nullptr), size});
  });
  if (!owner) throw py::error_already_set();
  PyCapsule_SetContext(owner, reinterpret_cast<void*>(buffer.bytes));
  py::object owned = py::reinterpret_steal<py::object>(owner);
  PyObject* array = new_array(descr, ndim, shape, buffer.data);
  py::detail::npy_api::get().PyArray_SetBaseObject_(array, owned.release().ptr());
  return array;
}

// An op's result: an array and the reference that the caller gets. Hidden like pybind11's own types, for any
// compiler settings.
struct __attribute__((visibility("hidden"))) Result : arguments::Array {
  py::object owned;
  PyObject* give() { return owned.release().ptr(); }
};

// Two results for Python: the caller's own pair of arrays, or a tuple.
inline PyObject* both(PyObject* out, Result& a, Result& b) {
  if (arguments::present(out)) return py::reinterpret_borrow<py::object>(out).release().ptr();
  return py::make_tuple(std::move(a.owned), std::move(b.owned)).release().ptr();
}

// A new array.
inline Result new_result(PyObject* descr, arguments::DType dtype, int ndim, const py::ssize_t* shape) {
  arguments::Array array;
  array.dtype = dtype;
  array.ndim = ndim;
  for (int i = 0; i < ndim; ++i) array.size *= shape[i];
  const size_t bytes = array.nbytes();
  array.object =
      bytes < kLarge ? new_array(descr, ndim, shape, nullptr) : new_large_array(descr, ndim, shape, bytes);
  array.data = py::detail::array_proxy(array.object)->data;
  array.shape = reinterpret_cast<const py::ssize_t*>(py::detail::array_proxy(array.object)->dimensions);
  return {array, py::reinterpret_steal<py::object>(array.object)};
}

}  // namespace results
