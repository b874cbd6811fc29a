// Iterates over the items of an array, and over those of other arrays with their own strides, which may be
// zero.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

namespace cpu {

constexpr int kMostAxes = 64;  // NumPy's own limit
// Bytes from one element to the next along each axis.
using AxisSteps = std::array<int64_t, kMostAxes>;

// The items of a result in order, and the offsets of N arrays with the same shape. Adjacent axes along which
// all arrays have matching strides are merged.
template <size_t N>
class Walk {
 public:
  Walk(int ndim, const int64_t* shape, const std::array<AxisSteps, N>& steps) {
    for (int i = 0; i < ndim; ++i)
      if (shape[i] != 1) add(shape[i], steps, i);
  }

  // Bytes from one item to the next in a run.
  int64_t step(size_t array) const { return axes_ ? steps_[array][axes_ - 1] : 0; }

  // Calls run(first, count, offsets) for each stretch of the items [begin, end) along one axis.
  template <class Run>
  void runs(int64_t begin, int64_t end, const Run& run) const {
    const int64_t longest = axes_ ? sizes_[axes_ - 1] : 1;
    while (begin < end) {
      const int64_t count = std::min(end - begin, longest - begin % longest);
      run(begin, count, offsets(begin));
      begin += count;
    }
  }

  // Bytes from the first element of each array to an item.
  std::array<int64_t, N> offsets(int64_t item) const {
    std::array<int64_t, N> found{};
    for (int i = axes_; i-- > 0; item /= sizes_[i])
      for (size_t array = 0; array < N; ++array) found[array] += item % sizes_[i] * steps_[array][i];
    return found;
  }

 private:
  void add(int64_t size, const std::array<AxisSteps, N>& steps, int axis) {
    bool goes_on = axes_ > 0;  // the axis before: one step of it spans this whole axis
    for (size_t array = 0; array < N && goes_on; ++array)
      goes_on = steps_[array][axes_ - 1] == steps[array][axis] * size;
    if (!goes_on) ++axes_;
    sizes_[axes_ - 1] = goes_on ? sizes_[axes_ - 1] * size : size;
    for (size_t array = 0; array < N; ++array) steps_[array][axes_ - 1] = steps[array][axis];
  }

  int axes_ = 0;
  std::array<int64_t, kMostAxes> sizes_;
  std::array<AxisSteps, N> steps_;
};

}  // namespace cpu
