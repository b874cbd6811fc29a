// How the ops become functions of the module: ops_*.h have one short function for each.
#pragma once

#include <string>

#include "call.h"

namespace airllm::cuda {

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

inline PyCFunction as_method(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// An op's row of the module's table: `text` is its signature without the name, and what help() says.
#define METHOD(op, text)                                                                                    \
  {#op, as_method([](PyObject*, PyObject* const* args, Py_ssize_t given, PyObject* keywords) -> PyObject* { \
     const Op named{#op};                                                                                   \
     return named_errors(named, [&] { return op(named, args, given, keywords); });                          \
   }),                                                                                                      \
   METH_FASTCALL | METH_KEYWORDS, #op text}

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
