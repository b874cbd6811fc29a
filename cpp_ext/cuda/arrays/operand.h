// An argument of an op in this backend, on the host or on a device, and the checks of its memory layout.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "../../cpu/quantized/formats.h"
#include "../runtime/device.h"
#include "dtypes.h"
#include "library.h"

namespace airllm::cuda {

using Op = arguments::Op;
using Shape = std::vector<py::ssize_t>;

constexpr int kHost = -1;

// The layouts that an op accepts: C-contiguous, or any strides with a contiguous last axis.
enum class Layout { dense, rows };

// What an argument may be.
struct Accepts {
  DTypes dtypes;
  Layout layout = Layout::dense;
  const char* kind = "a NumPy array";
};

inline py::ssize_t count_of(const Shape& shape) {
  py::ssize_t count = 1;
  for (const py::ssize_t n : shape) count *= n;
  return count;
}

inline Shape dense_strides(const Shape& shape) {
  Shape strides(shape.size());
  py::ssize_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
  return strides;
}

inline std::string tuple_text(const Shape& shape) {
  return arguments::shape_text(int(shape.size()), shape.data());
}

struct Span {
  const char *low, *high;
};

struct Operand {
  Operand() = default;
  Operand(Operand&&) = default;
  Operand& operator=(Operand&&) = default;

  explicit operator bool() const { return object != nullptr; }
  bool on_host() const { return device == kHost; }
  std::string place() const { return on_host() ? "host memory" : "device " + device_name(device); }
  int ndim() const { return int(shape.size()); }
  py::ssize_t axis(int from_last) const { return shape[shape.size() - size_t(from_last)]; }
  // The bytes of its elements or blocks, without the gaps between strided elements.
  int64_t nbytes() const {
    return block ? size / block->values * block->bytes : size * int64_t(size_of(dtype));
  }

  const char* name = "";
  PyObject* object = nullptr;  // null: an optional argument that was not passed
  char* data = nullptr;
  void* at = nullptr;  // the kernels' address: `data` on a device, else the copy's memory while the op runs
  DType dtype = DType::f32;
  Shape shape, strides;  // strides in elements
  Span span{};           // the memory from the first to the last element of the caller's array
  int64_t size = 1;
  const cpu::Block* block = nullptr;  // of a Quantized; shape, size and strides are then those of its values
  Library library = Library::numpy;
  int device = kHost;
  cudaStream_t home = nullptr;     // see stream.h
  bool released_any_time = false;  // its library may reuse the memory after release: finish before that
  bool read_only = false;
  py::object keep;  // the owner of the memory
};

inline bool is_dense(const Shape& shape, const Shape& strides) {
  const Shape expected = dense_strides(shape);
  for (size_t i = 0; i < shape.size(); ++i) {
    if (strides[i] != expected[i] && shape[i] != 1 && count_of(shape) != 0) return false;
  }
  return true;
}

inline bool is_dense(const Operand& x) { return is_dense(x.shape, x.strides); }

// The memory that an array spans, including the gaps between strided elements.
inline Span span_of(const Operand& x) {
  if (x.block) return {x.data, x.data + x.nbytes()};
  int64_t low = 0, high = x.size == 0 ? 0 : 1;
  for (size_t i = 0; i < x.shape.size() && x.size != 0; ++i) {
    const int64_t reach = (x.shape[i] - 1) * x.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  const int64_t itemsize = int64_t(size_of(x.dtype));
  return {x.data + low * itemsize, x.data + high * itemsize};
}

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

inline std::string dense_remedy(const Operand& x) {
  const std::string name = x.name;
  if (x.library == Library::numpy) return " (pass numpy.ascontiguousarray(" + name + "))";
  return " (pass " + name + contiguous_copy(x.library) + ")";
}

// Sets the strides, given in units of `unit` bytes; null means C-contiguous. ValueError if the op does not
// accept them.
inline void set_strides(const Op& op, Operand& x, const int64_t* strides, int64_t unit, Layout layout) {
  const int64_t itemsize = int64_t(size_of(x.dtype));
  bool aligned = x.size == 0 || reinterpret_cast<uintptr_t>(x.data) % uintptr_t(itemsize) == 0;
  x.strides = dense_strides(x.shape);
  Shape bytes(x.shape.size());
  for (size_t i = 0; i < x.shape.size(); ++i) {
    bytes[i] = strides ? strides[i] * unit : x.strides[i] * itemsize;
    aligned = aligned && (bytes[i] % itemsize == 0 || x.shape[i] == 1 || x.size == 0);
    x.strides[i] = bytes[i] / itemsize;
  }
  const bool rows = x.shape.empty() || x.strides.back() == 1 || x.shape.back() <= 1 || x.size == 0;
  if (aligned && (layout == Layout::rows ? rows : is_dense(x))) return;
  const std::string expected = layout == Layout::rows ? "the last axis contiguous" : "C-contiguous";
  op.wrong_value(x.name, "has strides " + tuple_text(bytes), expected + " and aligned" + dense_remedy(x));
}

inline void set_shape(Operand& x, Shape shape) {
  x.shape = std::move(shape);
  x.size = count_of(x.shape);
}

// Sets the dtype; TypeError with the dtype found if it is unsupported or not accepted.
inline void set_dtype(const Op& op, Operand& x, const DTypeFacts* found, const std::string& name,
                      const DTypes& accepted) {
  if (!found || !accepted.has(found->dtype)) {
    const bool convertible = x.on_host() && accepted.has(DType::f32);
    const std::string remedy =
        convertible ? " (convert with " + std::string(x.name) + ".astype(numpy.float32))" : "";
    op.wrong_type(x.name, "has dtype " + name, accepted.text() + remedy);
  }
  x.dtype = found->dtype;
}

// A NumPy array; else an error with the reason.
inline Operand from_host(const Op& op, const char* name, PyObject* object, const Accepts& accepts) {
  if (!arguments::is_array(object)) arguments::wrong_kind(op, name, object, accepts.kind);
  const auto* fields = py::detail::array_proxy(object);
  Operand x;
  x.name = name;
  x.object = object;
  x.keep = py::reinterpret_borrow<py::object>(object);
  x.data = fields->data;
  x.read_only = (fields->flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_) == 0;
  set_dtype(op, x, facts_of_numpy(object), arguments::text_of(object, "dtype"), accepts.dtypes);
  set_shape(x, Shape(fields->dimensions, fields->dimensions + fields->nd));
  const Shape strides(fields->strides, fields->strides + fields->nd);
  set_strides(op, x, strides.data(), 1, accepts.layout);
  return x;
}

}  // namespace airllm::cuda
