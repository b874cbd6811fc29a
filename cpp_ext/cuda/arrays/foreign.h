// Arrays on a device: DeviceArrays, and arrays of other libraries through DLPack or __cuda_array_interface__.
#pragma once

#include <string>
#include <utility>

#include "device_array.h"
#include "operand.h"

namespace airllm::cuda {

// ---- DLPack

inline std::string type_name(const dlpack::Type& type) {
  static const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const std::string kind =
      type.code < 7 ? kinds[type.code] : "type " + std::to_string(type.code) + " of bits ";
  return kind + std::to_string(type.bits) + (type.lanes > 1 ? "x" + std::to_string(type.lanes) : "");
}

// The DLPack capsule, in the newer form if the library supports it: only that form says whether an array is
// read-only. PyTorch need not synchronise, since the op runs on its current stream.
inline py::object capsule_of(const Op& op, const char* name, PyObject* object, const Operand& x) {
  const WithinDevice within(x.library, x.device);  // PyTorch exports from its current device only
  const py::object method = attribute_or_null(object, "__dlpack__");
  py::dict arguments;
  arguments["stream"] = x.library == Library::torch ? -1 : stream_number(x.home);
  try {
    try {
      return method(py::arg("max_version") = py::make_tuple(1, 0), **arguments);
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      return method(**arguments);
    }
  } catch (py::error_already_set& error) {
    throw py::type_error(std::string(op.name) + ": " + name + " of type " + Py_TYPE(object)->tp_name +
                         " could not be exported by its library: " + std::string(py::str(error.value())));
  }
}

inline const dlpack::Tensor& tensor_in(const Op& op, const char* name, PyObject* capsule, Operand& x) {
  if (PyCapsule_IsValid(capsule, dlpack::kVersionedName)) {
    const auto* managed =
        static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule, dlpack::kVersionedName));
    if (managed->version.major != 1) {
      op.wrong_type(name, "has DLPack version " + std::to_string(managed->version.major), "version 1");
    }
    x.read_only = (managed->flags & dlpack::kReadOnly) != 0;
    return managed->tensor;
  }
  if (!PyCapsule_IsValid(capsule, dlpack::kName)) op.wrong_type(name, "returned no DLPack capsule", "one");
  return static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, dlpack::kName))->tensor;
}

inline bool is_cuda(int type) { return type == dlpack::kCuda || type == dlpack::kCudaManaged; }

inline Operand from_dlpack(const Op& op, const char* name, PyObject* object, int device,
                           const Accepts& accepts) {
  Operand x;
  x.name = name;
  x.object = object;
  x.library = library_of(object);
  x.device = device;
  x.home = current_stream(x.library, device);
  x.released_any_time = x.library == Library::other;
  x.keep = capsule_of(op, name, object, x);  // nobody consumes it, so its destructor releases the memory
  const dlpack::Tensor& tensor = tensor_in(op, name, x.keep.ptr(), x);
  x.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  const DTypeFacts* found = facts_of_dlpack(tensor.type);
  set_dtype(op, x, found, found ? found->name : type_name(tensor.type), accepts.dtypes);
  set_shape(x, Shape(tensor.shape, tensor.shape + tensor.ndim));
  set_strides(op, x, tensor.strides, int64_t(size_of(x.dtype)), accepts.layout);
  return x;
}

// ---- __cuda_array_interface__

inline int device_of_pointer(const Op& op, const char* name, const void* data) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  if (!data) return device;
  cudaPointerAttributes found{};
  check(cudaPointerGetAttributes(&found, data), "cudaPointerGetAttributes");
  if (!is_device_memory(found)) {
    op.wrong_type(name, "has host memory", "device memory, as its __cuda_array_interface__ says");
  }
  return found.device;
}

inline void set_strides_of_interface(const Op& op, Operand& x, const py::dict& interface, Layout layout) {
  const bool strided = interface.contains("strides") && !interface["strides"].is_none();
  const Shape strides = strided ? interface["strides"].cast<Shape>() : Shape();
  if (strided && strides.size() != x.shape.size()) {
    op.wrong_value(x.name, "has " + std::to_string(strides.size()) + " strides",
                   std::to_string(x.shape.size()));
  }
  set_strides(op, x, strided ? strides.data() : nullptr, 1, layout);
}

inline Operand from_interface(const Op& op, const char* name, PyObject* object, const py::dict& interface,
                              const Accepts& accepts) {
  Operand x;
  x.name = name;
  x.object = object;
  x.library = library_of(object);
  const auto data = interface["data"].cast<std::pair<uintptr_t, bool>>();
  x.data = reinterpret_cast<char*>(data.first);
  x.read_only = data.second;
  x.device = device_of_pointer(op, name, x.data);
  const auto typestr = interface["typestr"].cast<std::string>();
  const DTypeFacts* known = facts_of_typestr(typestr);
  set_dtype(op, x, known, known ? known->name : py::str(py::dtype(typestr)), accepts.dtypes);
  const bool named = interface.contains("stream") && !interface["stream"].is_none();
  x.home =
      named ? numbered_stream(interface["stream"].cast<intptr_t>()) : current_stream(x.library, x.device);
  x.released_any_time = x.library == Library::other && !named;
  x.keep = py::reinterpret_borrow<py::object>(object);
  set_shape(x, interface["shape"].cast<Shape>());
  set_strides_of_interface(op, x, interface, accepts.layout);
  return x;
}

// ---- all arrays

inline Operand from_own(const Op& op, const char* name, PyObject* object, const DeviceArray& array,
                        const Accepts& accepts) {
  Operand x;
  x.name = name;
  x.object = object;
  x.library = Library::own;
  x.device = array.device;
  x.home = home_stream();
  x.keep = py::reinterpret_borrow<py::object>(object);
  x.data = static_cast<char*>(array.data());
  set_dtype(op, x, &facts(array.dtype), facts(array.dtype).name, accepts.dtypes);
  set_shape(x, array.shape);
  set_strides(op, x, array.strides.data(), int64_t(size_of(x.dtype)), accepts.layout);
  return x;
}

// Reads the argument `name` of an op; TypeError or ValueError if it is not an array that can be used as it
// is.
inline Operand operand(const Op& op, const char* name, PyObject* object, const Accepts& accepts) {
  if (Py_TYPE(object) == py::detail::npy_api::get().PyArray_Type_)
    return from_host(op, name, object, accepts);
  if (py::isinstance<DeviceArray>(object))
    return from_own(op, name, object, *py::cast<DeviceArray*>(py::handle(object)), accepts);
  if (const py::object where = attribute_or_null(object, "__dlpack_device__")) {
    const auto [type, device] = where().cast<std::pair<int, int>>();
    if (is_cuda(type)) return from_dlpack(op, name, object, device, accepts);
  } else if (const py::object interface = attribute_or_null(object, "__cuda_array_interface__")) {
    return from_interface(op, name, object, interface.cast<py::dict>(), accepts);
  }
  return from_host(op, name, object, accepts);  // which throws the reason
}

}  // namespace airllm::cuda
