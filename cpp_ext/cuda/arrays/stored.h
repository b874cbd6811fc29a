// Weights as checkpoints store them: floats, or an airllm.formats.Quantized, blocks of bytes on the host or a
// device.
#pragma once

#include <cstring>
#include <string>

#include "../launch/launch.h"
#include "foreign.h"

namespace airllm::cuda {

inline bool is_quantized(PyObject* object) { return std::strcmp(Py_TYPE(object)->tp_name, "Quantized") == 0; }

// NotImplementedError for a format that the kernels lack: the definition runs instead.
inline const cpu::Block& find_block(const Op& op, const char* name, const std::string& format) {
  std::string known;
  for (int i = cpu::kQ8_0; i < cpu::kFormats; ++i) {
    if (!has_kernels(i)) continue;
    if (format == cpu::kBlocks[i].name) return cpu::kBlocks[i];
    known += (known.empty() ? "" : ", ") + std::string(cpu::kBlocks[i].name);
  }
  arguments::not_implemented(op, name + (" has format " + format) + ", expected one of " + known);
}

// The number of a stored array's format, for kernels and launchers.
inline int format_of(const Operand& x) { return x.block ? int(x.block - cpu::kBlocks) : int(x.dtype); }

// The blocks of a Quantized, with the shape of their values.
inline Operand read_quantized(const Op& op, const char* name, PyObject* object) {
  if (!is_quantized(object)) arguments::wrong_kind(op, name, object, "a Quantized");
  const py::object weights = py::reinterpret_borrow<py::object>(object), data = weights.attr("data");
  const cpu::Block& block = find_block(op, name, py::str(weights.attr("format")));
  Operand x = operand(op, name, data.ptr(), {kBytes});
  if (!x.on_host() && reinterpret_cast<uintptr_t>(x.data) % 2 != 0)
    op.wrong_value(name, "has data at an odd address", "blocks that begin at even ones");
  Shape shape = x.shape;
  if (shape.empty() || shape.back() % block.bytes != 0)
    op.wrong_value(name, "has data of shape " + tuple_text(shape),
                   "(... row_bytes) with row_bytes a multiple of " + std::to_string(block.bytes));
  shape.back() = shape.back() / block.bytes * block.values;
  set_shape(x, std::move(shape));
  x.strides = dense_strides(x.shape);
  x.block = &block;
  return x;
}

inline Operand read_stored(const Op& op, const char* name, PyObject* object) {
  if (is_quantized(object)) return read_quantized(op, name, object);
  return operand(op, name, object, {kFloats, Layout::dense, "a NumPy array or a Quantized"});
}

}  // namespace airllm::cuda
