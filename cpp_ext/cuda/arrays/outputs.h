// The results of an op: the checks of a caller's `out`, and new arrays of the first input's library.
#pragma once

#include <string>
#include <vector>

#include "foreign.h"

namespace airllm::cuda {

// A result, and the inputs that it may be exactly.
struct Output {
  Operand array;
  std::vector<const Operand*> in_place;
};

[[noreturn]] inline void overlaps(const Op& op, const Operand& out, const Operand& in, bool in_place) {
  const std::string remedy = in_place ? std::string(" or exactly ") + in.name : "";
  throw py::value_error(std::string(op.name) + ": " + out.name + " overlaps " + in.name +
                        ", expected memory of its own" + remedy);
}

inline bool is_apart(const Operand& a, const Operand& b) {
  return a.size == 0 || b.size == 0 || a.span.high <= b.span.low || b.span.high <= a.span.low;
}

inline void check_apart(const Op& op, const Operand& in, const Operand& out, bool in_place) {
  const bool itself = in_place && in.data == out.data && in.nbytes() == out.nbytes() && is_dense(in);
  if (!itself && !is_apart(in, out)) overlaps(op, out, in, in_place);
}

// All arguments must be on one device, or all in host memory.
inline void check_place(const Op& op, const Operand& first, const Operand& x, bool is_out = false) {
  if (x.device == first.device) return;
  const bool movable = x.on_host() && !is_out;
  const std::string remedy = movable ? " (pass tensor_ops_cuda.to_device(" + std::string(x.name) + "))" : "";
  op.wrong_type(x.name, "has " + x.place(), first.place() + remedy);
}

// Checks `out=` with the messages of the other backends. Overlap is checked when all results are known.
inline Operand check_out(const Op& op, const char* name, PyObject* object, const Operand& first, DType dtype,
                         const Shape& shape) {
  Operand out = operand(op, name, object, {kFloats});
  check_place(op, first, out, true);
  if (out.shape != shape) op.wrong_value(name, "has shape " + tuple_text(out.shape), tuple_text(shape));
  if (out.dtype != dtype)
    op.wrong_type(name, std::string("has dtype ") + facts(out.dtype).name, facts(dtype).name);
  if (out.read_only)
    throw py::value_error(std::string(op.name) + ": " + name + " is read-only, expected a writeable array");
  return out;
}

// ---- new results

inline py::object torch_empty(const Operand& like, DType dtype, const Shape& shape) {
  const py::module_ torch = py::module_::import("torch");
  const py::object device = py::reinterpret_borrow<py::object>(like.object).attr("device");
  return torch.attr("empty")(as_tuple(shape), py::arg("dtype") = torch.attr(facts(dtype).name),
                             py::arg("device") = device);
}

inline py::object cupy_empty(const Operand& like, DType dtype, const Shape& shape) {
  const WithinDevice within(Library::cupy, like.device);
  return py::module_::import("cupy").attr("empty")(as_tuple(shape), py::arg("dtype") = numpy_dtype(dtype));
}

// PyTorch and CuPy allocate their results themselves, by their own rules for memory and streams.
inline py::object new_result(const Operand& like, DType dtype, const Shape& shape) {
  switch (like.library) {
    case Library::numpy:
      return new_numpy(numpy_dtype(dtype), shape);
    case Library::torch:
      return torch_empty(like, dtype, shape);
    case Library::cupy:
      return cupy_empty(like, dtype, shape);
    default: {
      DeviceGuard guard(like.device);
      return py::cast(new DeviceArray(dtype, shape, like.device), py::return_value_policy::take_ownership);
    }
  }
}

}  // namespace airllm::cuda
