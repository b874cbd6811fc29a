// Element-wise ops: each element of the result follows from the same element of the arrays.
#pragma once
#include "run.h"

namespace ops {

using MapKernels = cpu::MapKernel* const (cpu::Kernels::*)[cpu::kDTypes];

template <MapKernels kKernels>
inline PyObject* elementwise(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "out"};
  PyObject* values[2];
  place(op, values, names, 1, 1, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  results::Result out = results::result(op, values[1], x, x.ndim, x.shape, {{"x", &x, true}});
  cpu::MapKernel* const kernel = (active.load()->*kKernels)[x.dtype];
  const int64_t size = itemsize(x.dtype);
  run(x.size, 1, 1024, [&](int64_t begin, int64_t end) {
    kernel(out.data + begin * size, x.data + begin * size, end - begin, out.nbytes() > kStreamedBytes);
  });
  return out.give();
}

}  // namespace ops
