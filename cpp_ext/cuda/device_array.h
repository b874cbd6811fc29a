// DeviceArray: an array of this library's own in device memory, which other libraries can take without a
// copy.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "dlpack.h"
#include "memory.h"
#include "operand.h"

namespace airllm::cuda {

// Copies between host and device so far in this process.
inline std::atomic<int64_t> copies_made{0};

inline void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
  ++copies_made;
}

inline py::tuple as_tuple(const Shape& shape) {
  py::tuple tuple(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) tuple[i] = shape[i];
  return tuple;
}

// A new NumPy array; its dtype says whether it is bfloat16, which NumPy itself does not know.
inline py::object new_numpy(const py::dtype& dtype, const Shape& shape) {
  const auto& numpy = py::detail::npy_api::get();
  PyObject* made = numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, py::dtype(dtype).release().ptr(),
                                               int(shape.size()), shape.data(), nullptr, nullptr, 0, nullptr);
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

class DeviceArray {
 public:
  // Uninitialised memory of the current device, which must be `device`.
  DeviceArray(DType dtype, Shape shape, int device) : dtype(dtype), shape(std::move(shape)), device(device) {
    memory_ = std::make_shared<Memory>(bytes(), device, home_stream());
  }

  size_t bytes() const { return size_t(count_of(shape)) * size_of(dtype); }
  void* data() const { return memory_->data(); }

  py::object numpy() const {
    py::object host = new_numpy(numpy_dtype(dtype), shape);
    void* to = py::detail::array_proxy(host.ptr())->data;
    if (bytes() == 0) return host;
    py::gil_scoped_release released;
    DeviceGuard guard(device);
    copy(to, data(), bytes(), cudaMemcpyDeviceToHost, home_stream());
    check(cudaStreamSynchronize(home_stream()), "cudaStreamSynchronize");
    return host;
  }

  py::dict cuda_array_interface() const {
    if (dtype == DType::bf16) {
      throw py::attribute_error("__cuda_array_interface__ has no type for bfloat16: use __dlpack__");
    }
    memory_->used_elsewhere();  // the protocol does not say on which stream
    py::dict found;
    found["shape"] = as_tuple(shape);
    found["typestr"] = facts(dtype).typestr;
    found["data"] = py::make_tuple(reinterpret_cast<uintptr_t>(data()), false);
    found["strides"] = py::none();
    found["stream"] = stream_number(home_stream());
    found["version"] = 3;
    return found;
  }

  // Makes the content ready for a consumer's stream, in DLPack's numbers.
  void ready_on(const py::object& stream) const {
    const intptr_t number = stream.is_none() ? 1 : stream.cast<intptr_t>();
    if (number == 0)
      throw py::value_error("__dlpack__: stream is 0, expected 1 (legacy), 2 (per thread) or a handle");
    if (number == -1 || numbered_stream(number) != home_stream()) memory_->used_elsewhere();
    if (number == -1) return;
    DeviceGuard guard(device);
    order(home_stream(), numbered_stream(number));
  }

  py::capsule dlpack(bool versioned) const;

  const DType dtype;
  const Shape shape;
  const int device;

 private:
  template <class Managed>
  struct Exported;

  std::shared_ptr<Memory> memory_;
};

// What a DLPack capsule points to: the structure, and what keeps its memory alive.
template <class Managed>
struct DeviceArray::Exported {
  explicit Exported(const DeviceArray& array)
      : shape(array.shape), strides(dense_strides(array.shape)), memory(array.memory_) {
    const dlpack::Type type{facts(array.dtype).code, uint8_t(8 * size_of(array.dtype)), 1};
    managed.tensor = {array.data(),
                      {dlpack::kCuda, array.device},
                      int32_t(shape.size()),
                      type,
                      shape.data(),
                      strides.data(),
                      0};
    managed.context = this;
    managed.deleter = [](Managed* self) { delete static_cast<Exported*>(self->context); };
  }

  // A capsule that nobody took frees the structure itself.
  static py::capsule capsule(const char* name, void (*destructor)(PyObject*), Exported* made) {
    PyObject* capsule = PyCapsule_New(&made->managed, name, destructor);
    if (!capsule) {
      delete made;
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::capsule>(capsule);
  }

  Managed managed{};
  Shape shape, strides;
  std::shared_ptr<Memory> memory;
};

template <class Managed>
void free_unless_taken(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

inline py::capsule DeviceArray::dlpack(bool versioned) const {
  if (!versioned) {
    using Export = Exported<dlpack::Managed>;
    const auto destructor = [](PyObject* c) { free_unless_taken<dlpack::Managed>(c, dlpack::kName); };
    return Export::capsule(dlpack::kName, destructor, new Export(*this));
  }
  using Export = Exported<dlpack::ManagedVersioned>;
  auto* made = new Export(*this);
  made->managed.version = {1, 0};
  const auto destructor = [](PyObject* c) {
    free_unless_taken<dlpack::ManagedVersioned>(c, dlpack::kVersionedName);
  };
  return Export::capsule(dlpack::kVersionedName, destructor, made);
}

[[noreturn]] inline void buffer_error(const std::string& text) { throw py::buffer_error(text); }

inline py::capsule export_dlpack(const DeviceArray& self, const py::object& stream,
                                 const py::object& max_version, const py::object& dl_device,
                                 const py::object& copy) {
  const auto here = py::make_tuple(int(dlpack::kCuda), self.device);
  if (!dl_device.is_none() && !dl_device.equal(here)) {
    buffer_error("DeviceArray lies on " + device_name(self.device) + ": call .numpy() for host memory");
  }
  if (!copy.is_none() && copy.cast<bool>()) buffer_error("DeviceArray is exported without a copy only");
  self.ready_on(stream);
  const bool versioned = !max_version.is_none() && max_version.cast<py::tuple>()[0].cast<int>() >= 1;
  return self.dlpack(versioned);
}

// A host array's copy on the device. The array is done with when this returns.
inline std::unique_ptr<DeviceArray> to_device(const Operand& array, int device) {
  py::gil_scoped_release released;
  DeviceGuard guard(device);
  auto made = std::make_unique<DeviceArray>(array.dtype, array.shape, device);
  if (made->bytes() == 0) return made;
  copy(made->data(), array.data, made->bytes(), cudaMemcpyHostToDevice, home_stream());
  check(cudaStreamSynchronize(home_stream()), "cudaStreamSynchronize");  // pinned memory is read until then
  return made;
}

inline std::string repr(const DeviceArray& self) {
  return "DeviceArray(shape=" + tuple_text(self.shape) + ", dtype=" + facts(self.dtype).name + ", device='" +
         device_name(self.device) + "')";
}

inline void define_device_array(py::module_& module) {
  const char* doc =
      "An array in the memory of a CUDA device, C-contiguous: float32, float16, bfloat16, or bool, uint8, "
      "int32\n"
      "and int64 for what ops take beside floats.\n\n"
      "Made by to_device() and by the ops. Other libraries take it without a copy: "
      "torch.from_dlpack(array),\n"
      "cupy.from_dlpack(array). Its content follows the order of CUDA's legacy default stream.";
  py::class_<DeviceArray>(module, "DeviceArray", doc)
      .def_property_readonly("shape", [](const DeviceArray& self) { return as_tuple(self.shape); })
      .def_property_readonly("ndim", [](const DeviceArray& self) { return self.shape.size(); })
      .def_property_readonly("size", [](const DeviceArray& self) { return count_of(self.shape); })
      .def_property_readonly("nbytes", &DeviceArray::bytes)
      .def_property_readonly("dtype", [](const DeviceArray& self) { return numpy_dtype(self.dtype); })
      .def_property_readonly("device", [](const DeviceArray& self) { return device_name(self.device); })
      .def("numpy", &DeviceArray::numpy, "A copy in host memory, as a NumPy array.")
      .def_property_readonly("__cuda_array_interface__", &DeviceArray::cuda_array_interface)
      .def("__dlpack_device__",
           [](const DeviceArray& self) { return py::make_tuple(int(dlpack::kCuda), self.device); })
      .def("__dlpack__", &export_dlpack, py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
           py::arg("copy") = py::none())
      .def("__array__",
           [](const DeviceArray& self, const py::args&, const py::kwargs&) -> py::object {
             throw py::type_error("DeviceArray lies on " + device_name(self.device) +
                                  ": call .numpy() for a copy");
           })
      .def("__repr__", &repr);
}

}  // namespace airllm::cuda
