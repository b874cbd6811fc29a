// DeviceArray: this library's own array in device memory. Other libraries can use it without a copy.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "../runtime/memory.h"
#include "dlpack.h"
#include "operand.h"

namespace airllm::cuda {

// The number of copies between host and device in this process.
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

// A new NumPy array; its dtype may be bfloat16, which NumPy itself does not define.
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
  DeviceArray(DType dtype, Shape shape, int device)
      : dtype(dtype), shape(std::move(shape)), strides(dense_strides(this->shape)), device(device) {
    memory_ = std::make_shared<Memory>(bytes(), device, home_stream());
  }
  // The same memory with another shape or order of axes.
  DeviceArray(const DeviceArray& of, Shape shape, Shape strides)
      : dtype(of.dtype),
        shape(std::move(shape)),
        strides(std::move(strides)),
        device(of.device),
        memory_(of.memory_) {}

  size_t bytes() const { return size_t(count_of(shape)) * size_of(dtype); }
  void* data() const { return memory_->data(); }

  py::object numpy() const {
    const std::vector<size_t> order = axes_in_memory();
    Shape stored;
    py::tuple places(order.size());  // the places of this array's axes in that order
    for (size_t i = 0; i < order.size(); ++i) stored.push_back(shape[order[i]]), places[order[i]] = i;
    const py::object host = new_numpy(numpy_dtype(dtype), stored);
    if (bytes() != 0) copy_to_host(py::detail::array_proxy(host.ptr())->data);
    return host.attr("transpose")(places);
  }

  py::dict cuda_array_interface() const {
    if (dtype == DType::bf16) {
      throw py::attribute_error("__cuda_array_interface__ has no type for bfloat16: use __dlpack__");
    }
    memory_->used_elsewhere();  // the protocol does not give the stream
    py::dict found;
    found["shape"] = as_tuple(shape);
    found["typestr"] = facts(dtype).typestr;
    found["data"] = py::make_tuple(reinterpret_cast<uintptr_t>(data()), false);
    found["strides"] = is_dense(shape, strides) ? py::object(py::none()) : as_tuple(strides_in_bytes());
    found["stream"] = stream_number(home_stream());
    found["version"] = 3;
    return found;
  }

  // Makes the contents ready for a consumer's stream, which is a DLPack stream number.
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
  const Shape shape, strides;  // strides in elements
  const int device;

 private:
  // Its axes from the slowest-varying to the fastest.
  std::vector<size_t> axes_in_memory() const {
    std::vector<size_t> order(shape.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
    return order;
  }

  Shape strides_in_bytes() const {
    Shape found = strides;
    for (py::ssize_t& stride : found) stride *= py::ssize_t(size_of(dtype));
    return found;
  }

  void copy_to_host(void* to) const {
    const arguments::Unlocked released;
    DeviceGuard guard(device);
    copy(to, data(), bytes(), cudaMemcpyDeviceToHost, home_stream());
    check(cudaStreamSynchronize(home_stream()), "cudaStreamSynchronize");
  }

  template <class Managed>
  struct Exported;

  std::shared_ptr<Memory> memory_;
};

// What a DLPack capsule points to: the structure, and the owner of its memory.
template <class Managed>
struct DeviceArray::Exported {
  explicit Exported(const DeviceArray& array)
      : shape(array.shape), strides(array.strides), memory(array.memory_) {
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

  // A capsule that no consumer took frees the structure itself.
  static py::capsule capsule(const char* name, void (*destructor)(PyObject*), Exported* exported) {
    PyObject* capsule = PyCapsule_New(&exported->managed, name, destructor);
    if (!capsule) {
      delete exported;
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
  auto* exported = new Export(*this);
  exported->managed.version = {1, 0};
  const auto destructor = [](PyObject* c) {
    free_unless_taken<dlpack::ManagedVersioned>(c, dlpack::kVersionedName);
  };
  return Export::capsule(dlpack::kVersionedName, destructor, exported);
}

[[noreturn]] inline void buffer_error(const std::string& text) { throw py::buffer_error(text); }

inline py::capsule export_dlpack(const DeviceArray& self, const py::object& stream,
                                 const py::object& max_version, const py::object& dl_device,
                                 const py::object& copy) {
  const auto here = py::make_tuple(int(dlpack::kCuda), self.device);
  if (!dl_device.is_none() && !dl_device.equal(here)) {
    buffer_error("DeviceArray is on " + device_name(self.device) + ": call .numpy() for host memory");
  }
  if (!copy.is_none() && copy.cast<bool>()) buffer_error("DeviceArray can only be exported without a copy");
  self.ready_on(stream);
  const bool versioned = !max_version.is_none() && max_version.cast<py::tuple>()[0].cast<int>() >= 1;
  return self.dlpack(versioned);
}

// A copy of a host array on the device. The host array is no longer needed when this returns.
inline std::unique_ptr<DeviceArray> to_device(const Operand& array, int device) {
  const arguments::Unlocked released;
  DeviceGuard guard(device);
  auto made = std::make_unique<DeviceArray>(array.dtype, array.shape, device);
  if (made->bytes() == 0) return made;
  copy(made->data(), array.data, made->bytes(), cudaMemcpyHostToDevice, home_stream());
  check(cudaStreamSynchronize(home_stream()), "cudaStreamSynchronize");  // pinned memory is read until then
  return made;
}

// The same elements in another shape. One size may be -1 and is inferred.
inline std::unique_ptr<DeviceArray> reshape(const DeviceArray& self, const py::args& sizes) {
  const bool one = sizes.size() == 1 && py::isinstance<py::sequence>(sizes[0]);
  const Shape given = one ? sizes[0].cast<Shape>() : sizes.cast<Shape>();
  Shape shape = given;
  py::ssize_t known = 1;
  for (const py::ssize_t n : given) known *= n == -1 ? 1 : n;
  for (py::ssize_t& n : shape) {
    if (n == -1 && known != 0) n = count_of(self.shape) / known;
  }
  const bool fits = std::all_of(shape.begin(), shape.end(), [](py::ssize_t n) { return n >= 0; }) &&
                    count_of(shape) == count_of(self.shape);
  if (!fits)
    throw py::value_error("reshape: shape has value " + tuple_text(given) + ", expected one of " +
                          std::to_string(count_of(self.shape)) + " elements");
  if (!is_dense(self.shape, self.strides))
    throw py::value_error("reshape: the array has its axes in another order, expected a C-contiguous one");
  const Shape strides = dense_strides(shape);
  return std::make_unique<DeviceArray>(self, shape, strides);
}

// The same elements with two axes swapped, for consumers that accept any strides.
inline std::unique_ptr<DeviceArray> swapaxes(const DeviceArray& self, py::ssize_t one, py::ssize_t other) {
  Shape shape = self.shape, strides = self.strides;
  const auto ndim = py::ssize_t(shape.size());
  for (py::ssize_t* axis : {&one, &other}) {
    if (*axis < -ndim || *axis >= ndim)
      throw py::value_error("swapaxes: axis has value " + std::to_string(*axis) + ", expected one of " +
                            std::to_string(ndim) + " axes");
    if (*axis < 0) *axis += ndim;
  }
  std::swap(shape[size_t(one)], shape[size_t(other)]);
  std::swap(strides[size_t(one)], strides[size_t(other)]);
  return std::make_unique<DeviceArray>(self, shape, strides);
}

inline std::string repr(const DeviceArray& self) {
  return "DeviceArray(shape=" + tuple_text(self.shape) + ", dtype=" + facts(self.dtype).name + ", device='" +
         device_name(self.device) + "')";
}

inline void define_device_array(py::module_& module) {
  const char* doc =
      "An array in the memory of a CUDA device: float32, float16, bfloat16, or bool, uint8, "
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
      .def("reshape", &reshape, "The same memory in another shape, given as numbers or a tuple.")
      .def("swapaxes", &swapaxes, py::arg("axis1"), py::arg("axis2"),
           "The same memory with two axes changed for each other; attention takes such an array.")
      .def("numpy", &DeviceArray::numpy, "A copy in host memory, as a NumPy array.")
      .def_property_readonly("__cuda_array_interface__", &DeviceArray::cuda_array_interface)
      .def("__dlpack_device__",
           [](const DeviceArray& self) { return py::make_tuple(int(dlpack::kCuda), self.device); })
      .def("__dlpack__", &export_dlpack, py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
           py::arg("copy") = py::none())
      .def("__array__",
           [](const DeviceArray& self, const py::args&, const py::kwargs&) -> py::object {
             throw py::type_error("DeviceArray is on " + device_name(self.device) +
                                  ": call .numpy() for a copy");
           })
      .def("__repr__", &repr);
}

}  // namespace airllm::cuda
