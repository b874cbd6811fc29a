// Arrays whose leading axes are broadcast to those of a result, as NumPy does it: a step of zero where an
// axis has one element or is not there.
#pragma once
#include <algorithm>
#include <array>

#include "../arguments.h"

namespace [[gnu::visibility("hidden")]] ops {

namespace py = pybind11;

constexpr int kMostAxes = 64;  // NumPy's own limit
using Steps = std::array<int64_t, kMostAxes>;

// Bytes from one element to the next along each axis of `shape`, for all but the last `inner` axes of an
// array that is broadcast to them. False if it does not fit.
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

// The items of a result in their order, and where N arrays that step along with it have theirs.
// Neighbouring axes along which all of them step alike are walked as one.
template <size_t N>
class Walk {
 public:
  Walk(int ndim, const py::ssize_t* shape, const std::array<Steps, N>& steps) {
    for (int i = 0; i < ndim; ++i)
      if (shape[i] != 1) add(shape[i], steps, i);
  }

  // Bytes from one item to the next in a run.
  int64_t step(size_t array) const { return axes_ ? steps_[array][axes_ - 1] : 0; }

  // Calls run(first, count, offsets) for each stretch of the items [begin, end) that lies along one axis.
  template <class Run>
  void runs(int64_t begin, int64_t end, const Run& run) const {
    const int64_t longest = axes_ ? sizes_[axes_ - 1] : 1;
    while (begin < end) {
      const int64_t count = std::min(end - begin, longest - begin % longest);
      run(begin, count, offsets(begin));
      begin += count;
    }
  }

  // Bytes from the first element of each array to that of an item.
  std::array<int64_t, N> offsets(int64_t item) const {
    std::array<int64_t, N> found{};
    for (int i = axes_; i-- > 0; item /= sizes_[i])
      for (size_t array = 0; array < N; ++array) found[array] += item % sizes_[i] * steps_[array][i];
    return found;
  }

 private:
  void add(int64_t size, const std::array<Steps, N>& steps, int axis) {
    bool goes_on = axes_ > 0;  // the axis before: one step of it is all of this one
    for (size_t array = 0; array < N && goes_on; ++array)
      goes_on = steps_[array][axes_ - 1] == steps[array][axis] * size;
    if (!goes_on) ++axes_;
    sizes_[axes_ - 1] = goes_on ? sizes_[axes_ - 1] * size : size;
    for (size_t array = 0; array < N; ++array) steps_[array][axes_ - 1] = steps[array][axis];
  }

  int axes_ = 0;
  std::array<int64_t, kMostAxes> sizes_;
  std::array<Steps, N> steps_;
};

}  // namespace ops
