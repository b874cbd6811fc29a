// Weights as they are stored, and the ops that only move them: quantize, dequantize, embedding.
#pragma once
#include <cstring>
#include <vector>

#include "../cpu/names.h"
#include "../cpu/threaded_formats.h"
#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

// A plain array, or an airllm.formats.Quantized, as kernels see it.
struct Stored {
  cpu::Format format = cpu::kF32;
  Array array;  // of the bytes, where they are blocks: to tell whether memory overlaps
  int ndim = 0;
  std::vector<py::ssize_t> shape;  // of the values

  const char* data() const { return array.data; }
  bool is_quantized() const { return format > cpu::kBF16; }
  int64_t axis(int from_last) const { return shape[ndim - from_last]; }
  int64_t row_bytes() const { return cpu::row_bytes(format, axis(1)); }
  std::string shape_text() const { return arguments::shape_text(ndim, shape.data()); }
};

// Kept for the life of the process; imported when a Quantized may be there, since not every user has one.
inline PyObject* quantized_type() {
  return kept_object([] { return py::module_::import("airllm.formats").attr("Quantized"); });
}

inline py::object attribute(PyObject* object, PyObject* name) {
  return steal(PyObject_GetAttr(object, name));
}

// The block format of this name, in letters of any case. NotImplementedError for one that airllm.formats has
// and these kernels lack: the definition runs. ValueError that lists those that it has for any other.
inline cpu::Format format_named(const Op& op, PyObject* name, bool to_quantize) {
  if (!PyUnicode_Check(name)) wrong_kind(op, "format", name, "a str");
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name, &length);
  if (!text) PyErr_Clear();  // half a surrogate pair, which no name has
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

// The bytes of a Quantized, which its constructor has checked; here again, as memory depends on it.
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
    op.wrong_type(name, "has data of another kind", "what the constructor of Quantized takes");
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

inline Stored quantized(const Op& op, const char* name, PyObject* object) {
  static PyObject* const data = PyUnicode_InternFromString("data");
  static PyObject* const format = PyUnicode_InternFromString("format");
  const cpu::Format found = format_named(op, attribute(object, format).ptr(), false);
  return of_blocks(op, name, attribute(object, data).ptr(), found);  // `object` holds the data
}

inline bool is_quantized(PyObject* object) {
  return !is_array(object) && reinterpret_cast<PyObject*>(Py_TYPE(object)) == quantized_type();
}

inline Stored stored(const Op& op, const char* name, PyObject* object) {
  if (is_quantized(object)) return quantized(op, name, object);
  if (!is_array(object)) wrong_kind(op, name, object, "a NumPy array or a Quantized");
  return of_floats(op, name, object);
}

// Keys and values as a cache has them: floats, or bytes that are blocks of Q8_0.
inline Stored kept(const Op& op, const char* name, PyObject* object) {
  return is_uint8(object) ? of_blocks(op, name, object, cpu::kQ8_0) : of_floats(op, name, object);
}

// A result of a dtype that no argument need have.
inline results::Result result_of(const Op& op, PyObject* out, int numpy_type, DType dtype,
                                 const std::vector<py::ssize_t>& shape, std::initializer_list<Input> inputs) {
  const int ndim = static_cast<int>(shape.size());
  if (present(out)) return results::given_result(op, out, dtype, ndim, shape.data(), inputs);
  const py::object descr =
      py::reinterpret_steal<py::object>(py::detail::npy_api::get().PyArray_DescrFromType_(numpy_type));
  return results::new_result(descr.ptr(), dtype, ndim, shape.data());
}

inline PyObject* quantize(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "format"};
  PyObject* values[2];
  place(op, values, names, 2, 2, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  const cpu::Format format = format_named(op, values[1], true);
  const cpu::Block& block = cpu::kBlocks[format];
  if (x.ndim < 1 || x.axis(1) % block.values)
    op.wrong_shape("x", x, "(... k) with k a multiple of " + std::to_string(block.values));
  std::vector<py::ssize_t> shape(x.shape, x.shape + x.ndim);
  shape.back() = cpu::row_bytes(format, shape.back());
  results::Result data = result_of(op, nullptr, kNumpyUint8, cpu::kBool, shape, {{"x", &x, false}});
  run(x.size * 16,
      [&] { cpu::threaded::quantize(active.load()->stored, format, data.data, x.dtype, x.data, x.size); });
  const py::object made = py::reinterpret_steal<py::object>(data.give());
  const py::str name(block.name);
  PyObject* const of_it[] = {made.ptr(), name.ptr()};
  return unless_ended([&] { return PyObject_Vectorcall(quantized_type(), of_it, 2, nullptr); });
}

inline PyObject* dequantize(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"q", "out"};
  PyObject* values[2];
  place(op, values, names, 1, 1, args, given, keywords);
  if (!is_quantized(values[0])) wrong_kind(op, "q", values[0], "a Quantized");
  const Stored q = quantized(op, "q", values[0]);
  results::Result out =
      result_of(op, values[1], kNumpyFloat32, cpu::kFloat32, q.shape, {{"q", &q.array, false}});
  run(out.size, [&] {
    cpu::threaded::dequantize(active.load()->stored, q.format, reinterpret_cast<float*>(out.data), q.data(),
                              out.size);
  });
  return out.give();
}

// Whole numbers of 32 or 64 bits.
struct Ids {
  Array array;  // of their bytes: to tell whether memory overlaps
  int64_t count = 1;
  bool wide;
  int64_t operator[](int64_t i) const {
    return wide ? reinterpret_cast<const int64_t*>(array.data)[i]
                : reinterpret_cast<const int32_t*>(array.data)[i];
  }
};

inline Ids ids_of(const Op& op, const char* name, PyObject* object) {
  if (!is_array(object)) wrong_kind(op, name, object, "a NumPy array");
  const auto* fields = py::detail::array_proxy(object);
  const auto* descr = py::detail::array_descriptor_proxy(fields->descr);
  const py::dtype dtype = py::reinterpret_borrow<py::dtype>(fields->descr);
  if (descr->kind != 'i' || descr->byteorder == '>' || (dtype.itemsize() != 4 && dtype.itemsize() != 8))
    op.wrong_type(name, "has dtype " + text_of(object, "dtype"), "int64 or int32");
  Ids ids;
  ids.wide = dtype.itemsize() == 8;
  ids.array.object = object;
  ids.array.data = fields->data;
  ids.array.ndim = fields->nd;
  ids.array.shape = reinterpret_cast<const py::ssize_t*>(fields->dimensions);
  for (int i = 0; i < fields->nd; ++i) ids.count *= ids.array.shape[i];
  ids.array.dtype = cpu::kBool;  // a byte each
  ids.array.size = ids.count * dtype.itemsize();
  if (!has_flags(object,
                 py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_))
    wrong_strides(op, name, ids.array, "C-contiguous");
  return ids;
}

// A copy, so that what was checked is what is used: another thread may change the ids at any time.
inline std::vector<int64_t> checked_ids(const Op& op, const Ids& ids, int64_t rows) {
  std::vector<int64_t> found(ids.count);
  for (int64_t i = 0; i < ids.count; ++i) found[i] = ids[i];
  for (const int64_t id : found)
    if (id < 0 || id >= rows)
      op.wrong_value("ids", "has value " + std::to_string(id), "0 to " + std::to_string(rows - 1));
  return found;
}

inline PyObject* embedding(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"ids", "table", "out"};
  PyObject* values[3];
  place(op, values, names, 2, 2, args, given, keywords);
  const Ids ids = ids_of(op, "ids", values[0]);
  const Stored table = stored(op, "table", values[1]);
  if (table.ndim != 2) op.wrong_value("table", "has shape " + table.shape_text(), "(v d)");
  const std::vector<int64_t> rows = checked_ids(op, ids, table.axis(2));
  std::vector<py::ssize_t> shape(ids.array.shape, ids.array.shape + ids.array.ndim);
  shape.push_back(table.axis(1));
  const Input of_ids{"ids", &ids.array, false}, of_table{"table", &table.array, false};
  results::Result out =
      table.is_quantized() ? result_of(op, values[2], kNumpyFloat32, cpu::kFloat32, shape, {of_ids, of_table})
                           : results::result(op, values[2], table.array, static_cast<int>(shape.size()),
                                             shape.data(), {of_ids, of_table});
  if (!out.size) return out.give();
  const int64_t d = table.axis(1), from = table.row_bytes(), to = d * itemsize(out.dtype);
  const cpu::StoredKernels& kernels = active.load()->stored;
  run(ids.count, d, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const char* const row = table.data() + rows[i] * from;
      if (table.is_quantized())
        kernels.dequantize(table.format, reinterpret_cast<float*>(out.data + i * to), row, d);
      else
        std::memcpy(out.data + i * to, row, to);
    }
  });
  return out.give();
}

}  // namespace ops
