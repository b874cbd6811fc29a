// The libraries whose arrays this backend takes and gives, as far as their streams and devices go.
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

// A class of a library, if the process has imported it: nothing is imported for a check.
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

// The stream that a library's own work on a device goes to now.
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

// A device made current for a library by the library's own means, which may keep its own account of it.
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
    py::error_scope pending;  // of the call that failed within
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
