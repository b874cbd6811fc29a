// Weights as stored, and the ops that only convert or copy them: quantize, dequantize, embedding.
#pragma once
#include <cstring>
#include <vector>

#include "../../cpu/names.h"
#include "../../cpu/threads/parallel_formats.h"
#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

// A plain array, or an airllm.formats.Quantized or Interleaved, as kernels read it.
struct Stored {
  cpu::Format format = cpu::kF32;
  bool interleaved = false;
  Array array;  // of the bytes if they are blocks: to detect overlapping memory
  int ndim = 0;
  std::vector<py::ssize_t> shape;  // of the values

  const char* data() const { return array.data; }
  bool is_quantized() const { return format > cpu::kBF16; }
  int64_t axis(int from_last) const { return shape[ndim - from_last]; }
  int64_t row_bytes() const { return cpu::row_bytes(format, axis(1)); }
  std::string shape_text() const { return arguments::shape_text(ndim, shape.data()); }
};

// Kept for the life of the process. Imported on first use, since not every user has a Quantized.
inline PyObject* quantized_type() {
  return kept_object([] { return import_attribute("airllm.formats", "Quantized"); });
}
inline PyObject* interleaved_type() {
  return kept_object([] { return import_attribute("airllm.formats", "Interleaved"); });
}

inline py::object attribute(PyObject* object, PyObject* name) {
  return steal(PyObject_GetAttr(object, name));
}

// The block format of this name; the case of letters does not matter. Throws NotImplementedError for a format
// of airllm.formats that these kernels lack: the definition runs instead. Any other name is a ValueError that
// lists the supported formats.
inline cpu::Format find_format(const Op& op, PyObject* name, bool to_quantize) {
  if (!PyUnicode_Check(name)) wrong_kind(op, "format", name, "a str");
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name, &length);
  if (!text) PyErr_Clear();  // half a surrogate pair, which is in no name
  for (int f = cpu::kQ8_0; text && f < cpu::kFormats; ++f) {
    if (to_quantize && !cpu::kBlocks[f].has_quantizer) continue;
    if (cpu::same_name({text, static_cast<size_t>(length)}, cpu::kBlocks[f].name))
      return static_cast<cpu::Format>(f);
  }
  const py::module_ defined = py::module_::import("airllm.formats");
  const std::string found = "has value " + std::string(py::repr(name)),
                    expected = "one of " + std::string(py::str(defined.attr("names")(to_quantize)));
  if (text && py::cast<bool>(defined.attr("is_defined")(py::handle(name), to_quantize)))
    not_implemented(op, "format " + found + ", expected another " + expected);
  op.wrong_value("format", found, expected);
}

constexpr int kNumpyUint8 = 2, kNumpyFloat32 = 11;

inline bool is_uint8(PyObject* object) {
  return is_array(object) &&
         py::detail::array_descriptor_proxy(py::detail::array_proxy(object)->descr)->type_num == kNumpyUint8;
}

// The bytes of a Quantized. Its constructor has checked them; they are checked again for memory safety.
inline Array bytes(const Op& op, const char* name, PyObject* object, int64_t block) {
  const bool is_bytes = is_uint8(object) && has_flags(object, py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_);
  Array a;
  if (is_bytes) {
    const auto* fields = py::detail::array_proxy(object);
    a.object = object;
    a.data = fields->data;
    a.ndim = fields->nd;
    a.shape = reinterpret_cast<const py::ssize_t*>(fields->dimensions);
    a.dtype = cpu::kBool;  // a byte each
    for (int i = 0; i < a.ndim; ++i) a.size *= a.shape[i];
  }
  if (!is_bytes || a.ndim < 1 || a.axis(1) % block)
    op.wrong_type(name, "has data of another kind", "data that the constructor of Quantized accepts");
  return a;
}

inline Stored of_blocks(const Op& op, const char* name, PyObject* data, cpu::Format format) {
  const cpu::Block& block = cpu::kBlocks[format];
  Stored stored;
  stored.format = format;
  stored.array = bytes(op, name, data, block.bytes);
  stored.ndim = stored.array.ndim;
  stored.shape.assign(stored.array.shape, stored.array.shape + stored.ndim);
  stored.shape.back() = stored.shape.back() / block.bytes * block.values;
  return stored;
}

inline Stored of_floats(const Op& op, const char* name, PyObject* object) {
  Stored plain;
  plain.array = array(op, name, object);
  plain.format = static_cast<cpu::Format>(plain.array.dtype);
  plain.ndim = plain.array.ndim;
  plain.shape.assign(plain.array.shape, plain.array.shape + plain.ndim);
  return plain;
}

inline Stored read_blocks_of(const Op& op, const char* name, PyObject* object) {
  static PyObject* const data = PyUnicode_InternFromString("data");
  static PyObject* const format = PyUnicode_InternFromString("format");
  const cpu::Format found = find_format(op, attribute(object, format).ptr(), false);
  return of_blocks(op, name, attribute(object, data).ptr(), found);  // `object` holds the data
}

inline bool has_type(PyObject* object, PyObject* type) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type;
}
inline bool is_quantized(PyObject* object) { return !is_array(object) && has_type(object, quantized_type()); }

// The weight of an Interleaved. Its constructor has checked it; it is checked again for memory safety.
inline Stored read_interleaved(const Op& op, const char* name, PyObject* object) {
  Stored weight = read_blocks_of(op, name, object);
  if (weight.ndim != 2 || !cpu::can_interleave(weight.format, weight.axis(2), weight.axis(1)))
    op.wrong_value(name, "has shape " + weight.shape_text(), "an Interleaved that its constructor accepts");
  weight.interleaved = true;
  return weight;
}

inline Stored read_quantized(const Op& op, const char* name, PyObject* object) {
  if (!is_quantized(object)) wrong_kind(op, name, object, "a Quantized");
  return read_blocks_of(op, name, object);
}

inline Stored read_stored(const Op& op, const char* name, PyObject* object) {
  if (is_quantized(object)) return read_blocks_of(op, name, object);
  if (!is_array(object) && has_type(object, interleaved_type())) return read_interleaved(op, name, object);
  if (!is_array(object)) wrong_kind(op, name, object, "a NumPy array or a Quantized");
  return of_floats(op, name, object);
}

// Keys and values of a cache: floats, or bytes that are blocks of Q8_0.
inline Stored read_cache(const Op& op, const char* name, PyObject* object) {
  return is_uint8(object) ? of_blocks(op, name, object, cpu::kQ8_0) : of_floats(op, name, object);
}

// The dtype of the values: those of blocks are float32.
inline DType dtype_of_values(const Array& a) { return a.dtype; }
inline DType dtype_of_values(const Stored& a) { return a.is_quantized() ? cpu::kFloat32 : a.array.dtype; }

// A new array of a dtype that need not be that of an argument.
inline results::Result new_result(int numpy_type, DType dtype, int ndim, const py::ssize_t* shape) {
  const py::object descr =
      py::reinterpret_steal<py::object>(py::detail::npy_api::get().PyArray_DescrFromType_(numpy_type));
  return results::new_result(descr.ptr(), dtype, ndim, shape);
}

// A new array with the dtype of another one's values.
inline results::Result new_like(const Array& like, int ndim, const py::ssize_t* shape) {
  return results::new_result(py::detail::array_proxy(like.object)->descr, like.dtype, ndim, shape);
}
inline results::Result new_like(const Stored& like, int ndim, const py::ssize_t* shape) {
  if (!like.is_quantized()) return new_like(like.array, ndim, shape);
  return new_result(kNumpyFloat32, cpu::kFloat32, ndim, shape);
}

inline PyObject* quantize(const Array& x, PyObject* name) {
  constexpr Op op{"quantize"};
  const cpu::Format format = find_format(op, name, true);
  const cpu::Block& block = cpu::kBlocks[format];
  if (x.axis(1) % block.values)
    op.wrong_shape("x", x, "(... k) with k a multiple of " + std::to_string(block.values));
  std::vector<py::ssize_t> shape(x.shape, x.shape + x.ndim);
  shape.back() = cpu::row_bytes(format, shape.back());
  results::Result data = new_result(kNumpyUint8, cpu::kBool, x.ndim, shape.data());
  run(x.size * 16,
      [&] { cpu::threaded::quantize(active.load()->stored, format, data.data, x.dtype, x.data, x.size); });
  const py::object bytes_array = py::reinterpret_steal<py::object>(data.give());
  const py::str own_name(block.name);
  PyObject* const values[] = {bytes_array.ptr(), own_name.ptr()};
  return unless_ended([&] { return PyObject_Vectorcall(quantized_type(), values, 2, nullptr); });
}

inline void dequantize(const Array& out, const Stored& q) {
  run(out.size, [&] {
    cpu::threaded::dequantize(active.load()->stored, q.format, reinterpret_cast<float*>(out.data), q.data(),
                              out.size);
  });
}

// Integers of 32 or 64 bits. They are copied, so that the checked values are the ones used: another thread
// may change the array at any time.
struct Ids {
  Array array;  // of their bytes: to detect overlapping memory
  std::vector<int64_t> values;
};

inline Ids ids_of(const Op& op, const char* name, PyObject* object) {
  if (!is_array(object)) wrong_kind(op, name, object, "a NumPy array");
  const auto* fields = py::detail::array_proxy(object);
  const auto* descr = py::detail::array_descriptor_proxy(fields->descr);
  const py::dtype dtype = py::reinterpret_borrow<py::dtype>(fields->descr);
  if (descr->kind != 'i' || descr->byteorder == '>' || (dtype.itemsize() != 4 && dtype.itemsize() != 8))
    op.wrong_type(name, "has dtype " + text_of(object, "dtype"), "int64 or int32");
  Ids ids;
  ids.array.object = object;
  ids.array.data = fields->data;
  ids.array.ndim = fields->nd;
  ids.array.shape = reinterpret_cast<const py::ssize_t*>(fields->dimensions);
  int64_t count = 1;
  for (int i = 0; i < fields->nd; ++i) count *= ids.array.shape[i];
  ids.array.dtype = cpu::kBool;  // a byte each
  ids.array.size = count * dtype.itemsize();
  if (!has_flags(object,
                 py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_))
    wrong_strides(op, name, ids.array, "C-contiguous");
  ids.values.resize(count);
  const bool is_wide = dtype.itemsize() == 8;
  for (int64_t i = 0; i < count; ++i)
    ids.values[i] = is_wide ? reinterpret_cast<const int64_t*>(ids.array.data)[i]
                            : reinterpret_cast<const int32_t*>(ids.array.data)[i];
  return ids;
}

// Copies a weight's blocks in the order of an Interleaved to `out`, of the same shape and bytes.
inline void interleave(const py::object& weight, const py::object& out) {
  constexpr Op op{"interleave"};
  const Stored from = read_quantized(op, "weight", weight.ptr());
  if (from.ndim != 2 || !cpu::can_interleave(from.format, from.axis(2), from.axis(1)))
    op.wrong_value("weight", "has shape " + from.shape_text(),
                   "a matrix whose rows are a multiple of " + std::to_string(cpu::kBand) +
                       ", of a format with interleaved kernels");
  const Array to = bytes(op, "out", out.ptr(), cpu::kBlocks[from.format].bytes);
  if (to.ndim != 2 || to.shape[0] != from.array.shape[0] || to.shape[1] != from.array.shape[1] ||
      !has_flags(out.ptr(), py::detail::npy_api::NPY_ARRAY_WRITEABLE_))
    op.wrong_value("out", "has shape " + arguments::shape_text(to.ndim, to.shape),
                   "a writable array like the weight's data");
  run(from.axis(2) * from.axis(1),
      [&] { cpu::threaded::interleave(from.format, to.data, from.data(), from.axis(2), from.axis(1)); });
}

inline void embedding(const Array& out, const Ids& ids, const Stored& table) {
  if (table.interleaved)
    Op{"embedding"}.wrong_type("table", "is an Interleaved", "a NumPy array or a Quantized");
  const int64_t d = table.axis(1), from = table.row_bytes(), to = d * itemsize(out.dtype);
  const cpu::StoredKernels& kernels = active.load()->stored;
  run(static_cast<int64_t>(ids.values.size()), d, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const char* const row = table.data() + ids.values[i] * from;
      if (table.is_quantized())
        kernels.dequantize(table.format, reinterpret_cast<float*>(out.data + i * to), row, d);
      else
        std::memcpy(out.data + i * to, row, to);
    }
  });
}

}  // namespace ops
