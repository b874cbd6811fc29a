// How the ops become functions of the module: ops_*.h have one short function for each.
#pragma once

#include <string>

#include "call.h"

namespace airllm::cuda {

// An op's Python side: the arguments as METH_FASTCALL | METH_KEYWORDS gives them.
using Body = py::object(const Op&, PyObject* const*, Py_ssize_t, PyObject*);

// What a failing op raises: MemoryError when the device is full, RuntimeError otherwise, with the op's name.
template <class Run>
PyObject* named_errors(const Op& op, const Run& run) noexcept {
  return arguments::python_call([&]() -> PyObject* {
    try {
      return run().release().ptr();
    } catch (const CudaError& error) {
      PyErr_Format(error.out_of_memory() ? PyExc_MemoryError : PyExc_RuntimeError, "%s: %s", op.name,
                   error.what());
    } catch (const py::builtin_exception&) {
      throw;
    } catch (const py::error_already_set&) {
      throw;
    } catch (const std::runtime_error& error) {
      PyErr_Format(PyExc_RuntimeError, "%s: %s", op.name, error.what());
    }
    return nullptr;
  });
}

template <Body* kBody, const char* kName>
PyObject* entry(PyObject*, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  const Op op{kName};
  return named_errors(op, [&] { return kBody(op, args, given, keywords); });
}

template <Body* kBody, const char* kName>
PyMethodDef method(const char* documentation) {
  const auto function = entry<kBody, kName>;
  return {kName, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, documentation};
}

inline int64_t rows_of(const Operand& x) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < x.shape.size(); ++i) rows *= x.shape[i];
  return rows;
}

// `x` has the dtype of `first`, or, where it is a weight, float32.
inline void check_dtype(const Op& op, const Operand& x, const Operand& first, bool may_be_float32) {
  if (x.dtype == first.dtype || (may_be_float32 && x.dtype == DType::f32)) return;
  std::string expected = facts(first.dtype).name;
  if (may_be_float32 && first.dtype != DType::f32) expected += " or float32";
  op.wrong_type(x.name, std::string("has dtype ") + facts(x.dtype).name, expected);
}

}  // namespace airllm::cuda
