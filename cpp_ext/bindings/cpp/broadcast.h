// Broadcasts the leading axes of arrays to those of a result, as NumPy does: the step is zero along an axis
// that has one element or is missing.
#pragma once
#include <algorithm>

#include "../../cpu/threads/strided_walk.h"
#include "../arguments.h"

namespace [[gnu::visibility("hidden")]] ops {

namespace py = pybind11;

using Steps = cpu::AxisSteps;
using cpu::Walk;

// Computes the bytes from one element to the next along each axis of `shape`, for all but the last `inner`
// axes of an array that is broadcast to it. Returns false if the array does not fit.
inline bool broadcast(Steps& steps, const arguments::Array& a, int inner, int ndim,
                      const py::ssize_t* shape) {
  const int missing = ndim - (a.ndim - inner);
  if (a.ndim < inner || missing < 0) return false;
  std::fill_n(steps.begin(), missing, 0);
  int64_t dense = a.nbytes();
  for (int i = 0; i < a.ndim - inner; ++i) {
    if (a.shape[i]) dense /= a.shape[i];
    if (a.shape[i] != 1 && a.shape[i] != shape[missing + i]) return false;
    steps[missing + i] = a.shape[i] == 1 ? 0 : a.strides ? a.strides[i] : dense;
  }
  return true;
}

}  // namespace ops
