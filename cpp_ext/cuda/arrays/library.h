// The streams and devices of the libraries whose arrays this backend accepts and returns.
#pragma once

#include <pybind11/pybind11.h>

#include "../runtime/stream.h"

namespace airllm::cuda {

namespace py = pybind11;

enum class Library { numpy, own, torch, cupy, other };

inline py::object attribute_or_null(PyObject* object, const char* name) {
  PyObject* found = PyObject_GetAttrString(object, name);
  if (!found) PyErr_Clear();
  return py::reinterpret_steal<py::object>(found);
}

// Whether an object is of a library's class, if the process has imported the library: the check imports
// nothing.
inline bool is_instance_of(PyObject* object, const char* library, const char* type) {
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), library);
  if (!module) return false;
  const py::object found = attribute_or_null(module, type);
  return found && PyObject_IsInstance(object, found.ptr()) == 1;
}

inline Library library_of(PyObject* object) {
  if (is_instance_of(object, "torch", "Tensor")) return Library::torch;
  return is_instance_of(object, "cupy", "ndarray") ? Library::cupy : Library::other;
}

// A library's current stream on a device.
inline cudaStream_t current_stream(Library library, int device) {
  if (library == Library::torch) {
    const py::object stream = py::module_::import("torch").attr("cuda").attr("current_stream")(device);
    return numbered_stream(stream.attr("cuda_stream").cast<intptr_t>());
  }
  if (library == Library::cupy) {
    const py::object stream = py::module_::import("cupy").attr("cuda").attr("get_current_stream")(device);
    return numbered_stream(stream.attr("ptr").cast<intptr_t>());
  }
  return home_stream();
}

// Makes a device current through the library's own API, since the library may track the current device
// itself.
class WithinDevice {
 public:
  WithinDevice(Library library, int device) {
    if (library == Library::torch) {
      const py::object cuda = py::module_::import("torch").attr("cuda");
      if (cuda.attr("current_device")().cast<int>() != device) context_ = cuda.attr("device")(device);
    } else if (library == Library::cupy) {
      context_ = py::module_::import("cupy").attr("cuda").attr("Device")(device);
    }
    if (context_) context_.attr("__enter__")();
  }
  ~WithinDevice() {
    if (!context_) return;
    py::error_scope pending;  // of the call that failed in this scope
    try {
      context_.attr("__exit__")(py::none(), py::none(), py::none());
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("leaving a device");
    }
  }
  WithinDevice(const WithinDevice&) = delete;
  WithinDevice& operator=(const WithinDevice&) = delete;

 private:
  py::object context_;
};

}  // namespace airllm::cuda
