// An argument of an op as this backend takes it: a NumPy array, a DeviceArray, or a CUDA array of another
// library by DLPack or __cuda_array_interface__.
#pragma once

#include <string>
#include <utility>

#include "device_array.h"

namespace airllm::cuda {

static_assert(int(cpu::kFloat32) == int(DType::f32) && int(cpu::kFloat16) == int(DType::f16) &&
              int(cpu::kBFloat16) == int(DType::bf16));

enum class Library { numpy, own, torch, cupy, other };

constexpr int kHost = -1;

struct Operand {
  Operand() = default;
  Operand(Operand&&) = default;
  Operand& operator=(Operand&&) = default;

  bool on_host() const { return device == kHost; }
  DType dtype() const { return static_cast<DType>(array.dtype); }
  std::string place() const { return on_host() ? "host memory" : "device " + device_name(device); }

  arguments::Array array;
  Library library = Library::numpy;
  int device = kHost;
  cudaStream_t home = nullptr;     // see stream.h
  bool released_any_time = false;  // its library may reuse the memory once we let go: finish before that
  bool read_only = false;
  py::object keep;  // what the memory is borrowed from
  Shape shape;      // what array.shape points into, for device arrays
};

using Op = arguments::Op;

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

inline const char* contiguous_copy(Library library) {
  switch (library) {
    case Library::torch:
      return ".contiguous()";
    case Library::cupy:
      return ".copy()";
    default:
      return " as a C-contiguous copy";
  }
}

// Strides, in units of `unit` bytes, must be those of a C-contiguous array, and the memory aligned.
inline void check_dense(const Op& op, const char* name, const Operand& x, const int64_t* strides,
                        int64_t unit) {
  const int64_t itemsize = int64_t(size_of(x.dtype()));
  bool dense = x.array.size == 0 || reinterpret_cast<uintptr_t>(x.array.data) % uintptr_t(itemsize) == 0;
  int64_t expected = itemsize;
  Shape found(x.shape.size());
  for (size_t i = x.shape.size(); i-- > 0;) {
    found[i] = strides ? strides[i] * unit : expected;
    dense = dense && (found[i] == expected || x.shape[i] == 1 || x.array.size == 0);
    expected *= x.shape[i];
  }
  if (dense) return;
  op.wrong_value(name, "has strides " + arguments::shape_text(int(found.size()), found.data()),
                 "C-contiguous and aligned (pass " + std::string(name) + contiguous_copy(x.library) + ")");
}

[[noreturn]] inline void wrong_dtype(const Op& op, const char* name, const std::string& dtype) {
  op.wrong_type(name, "has dtype " + dtype, "float32, float16 or bfloat16");
}

inline void set_shape(Operand& x, Shape shape) {
  x.shape = std::move(shape);
  x.array.shape = x.shape.data();
  x.array.ndim = int(x.shape.size());
  x.array.size = count_of(x.shape);
}

// ---- DLPack

inline std::string type_name(const dlpack::Type& type) {
  static const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const std::string kind =
      type.code < 7 ? kinds[type.code] : "type " + std::to_string(type.code) + " of bits ";
  return kind + std::to_string(type.bits) + (type.lanes > 1 ? "x" + std::to_string(type.lanes) : "");
}

inline arguments::DType dtype_of(const Op& op, const char* name, const dlpack::Type& type) {
  if (type.lanes == 1 && type.code == dlpack::kFloat && type.bits == 32) return cpu::kFloat32;
  if (type.lanes == 1 && type.code == dlpack::kFloat && type.bits == 16) return cpu::kFloat16;
  if (type.lanes == 1 && type.code == dlpack::kBfloat && type.bits == 16) return cpu::kBFloat16;
  wrong_dtype(op, name, type_name(type));
}

// The capsule, of the newer form if the library knows it: only that says whether an array is read-only.
// PyTorch is asked for no synchronisation, since its current stream is where the work goes.
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
  if (!PyCapsule_IsValid(capsule, dlpack::kName)) op.wrong_type(name, "gave no DLPack capsule", "one");
  return static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, dlpack::kName))->tensor;
}

inline bool is_cuda(int type) { return type == dlpack::kCuda || type == dlpack::kCudaManaged; }

inline Operand from_dlpack(const Op& op, const char* name, PyObject* object, int device) {
  Operand x;
  x.library = library_of(object);
  x.device = device;
  x.home = current_stream(x.library, device);
  x.released_any_time = x.library == Library::other;
  x.keep = capsule_of(op, name, object, x);  // its destructor gives the memory back: nobody takes it out
  const dlpack::Tensor& tensor = tensor_in(op, name, x.keep.ptr(), x);
  x.array.object = object;
  x.array.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  x.array.dtype = dtype_of(op, name, tensor.type);
  set_shape(x, Shape(tensor.shape, tensor.shape + tensor.ndim));
  check_dense(op, name, x, tensor.strides, int64_t(size_of(x.dtype())));
  return x;
}

// ---- __cuda_array_interface__

inline arguments::DType dtype_of(const Op& op, const char* name, const std::string& typestr) {
  if (typestr == "<f4" || typestr == "=f4") return cpu::kFloat32;
  if (typestr == "<f2" || typestr == "=f2") return cpu::kFloat16;
  wrong_dtype(op, name, py::str(py::dtype(typestr)));
}

inline int device_of_pointer(const Op& op, const char* name, const void* data) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  if (!data) return device;
  cudaPointerAttributes found{};
  check(cudaPointerGetAttributes(&found, data), "cudaPointerGetAttributes");
  if (found.type != cudaMemoryTypeDevice && found.type != cudaMemoryTypeManaged) {
    op.wrong_type(name, "has host memory", "device memory, as its __cuda_array_interface__ says");
  }
  return found.device;
}

inline Operand from_interface(const Op& op, const char* name, PyObject* object, const py::dict& interface) {
  Operand x;
  x.library = library_of(object);
  const auto data = interface["data"].cast<std::pair<uintptr_t, bool>>();
  x.array.object = object;
  x.array.data = reinterpret_cast<char*>(data.first);
  x.read_only = data.second;
  x.array.dtype = dtype_of(op, name, interface["typestr"].cast<std::string>());
  x.device = device_of_pointer(op, name, x.array.data);
  const bool named = interface.contains("stream") && !interface["stream"].is_none();
  x.home =
      named ? numbered_stream(interface["stream"].cast<intptr_t>()) : current_stream(x.library, x.device);
  x.released_any_time = x.library == Library::other && !named;
  x.keep = py::reinterpret_borrow<py::object>(object);
  set_shape(x, interface["shape"].cast<Shape>());
  const bool strided = interface.contains("strides") && !interface["strides"].is_none();
  const Shape strides = strided ? interface["strides"].cast<Shape>() : Shape();
  if (strided && strides.size() != x.shape.size()) {
    op.wrong_value(name, "has " + std::to_string(strides.size()) + " strides",
                   std::to_string(x.shape.size()));
  }
  check_dense(op, name, x, strided ? strides.data() : nullptr, 1);
  return x;
}

// ---- all kinds

inline Operand from_own(PyObject* object, const DeviceArray& array) {
  Operand x;
  x.library = Library::own;
  x.device = array.device;
  x.home = home_stream();
  x.keep = py::reinterpret_borrow<py::object>(object);
  x.array.object = object;
  x.array.data = static_cast<char*>(array.data());
  x.array.dtype = static_cast<arguments::DType>(array.dtype);
  set_shape(x, array.shape);
  return x;
}

inline Operand from_host(const Op& op, const char* name, PyObject* object) {
  Operand x;
  x.array = arguments::array(op, name, object);
  return x;
}

// The argument `name` of an op; TypeError or ValueError if it is no array that can be taken as it is.
inline Operand operand(const Op& op, const char* name, PyObject* object) {
  if (Py_TYPE(object) == py::detail::npy_api::get().PyArray_Type_) return from_host(op, name, object);
  if (py::isinstance<DeviceArray>(object))
    return from_own(object, *py::cast<DeviceArray*>(py::handle(object)));
  if (const py::object where = attribute_or_null(object, "__dlpack_device__")) {
    const auto [type, device] = where().cast<std::pair<int, int>>();
    if (is_cuda(type)) return from_dlpack(op, name, object, device);
  } else if (const py::object interface = attribute_or_null(object, "__cuda_array_interface__")) {
    return from_interface(op, name, object, interface.cast<py::dict>());
  }
  return from_host(op, name, object);  // which says what is wrong with it
}

}  // namespace airllm::cuda
