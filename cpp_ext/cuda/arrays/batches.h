// Merges the leading axes of strided arrays into two axes for the kernels; the remaining axes become one call
// per position.
#pragma once

#include <array>
#include <vector>

#include "operand.h"

namespace airllm::cuda {

template <size_t N>
class Batches {
 public:
  using Strides = std::array<int64_t, N>;  // of each array, in elements

  Batches(const Shape& sizes, const std::array<Shape, N>& strides) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] != 1) add(sizes[i], strides, i);
    }
    while (axes_.size() < kInKernel) axes_.insert(axes_.begin(), {1, {}});
  }

  // The axes of one call, the last one first, and the strides of the arrays along them.
  int64_t size(size_t from_last) const { return axes_[axes_.size() - 1 - from_last].size; }
  const Strides& strides(size_t from_last) const { return axes_[axes_.size() - 1 - from_last].strides; }

  int64_t calls() const {
    int64_t count = 1;
    for (size_t i = 0; i + kInKernel < axes_.size(); ++i) count *= axes_[i].size;
    return count;
  }

  // The offsets of the arrays of a call.
  Strides offsets(int64_t call) const {
    Strides found{};
    for (size_t i = axes_.size() - kInKernel; i-- > 0; call /= axes_[i].size) {
      for (size_t array = 0; array < N; ++array)
        found[array] += call % axes_[i].size * axes_[i].strides[array];
    }
    return found;
  }

 private:
  static constexpr size_t kInKernel = 2;

  struct Axis {
    int64_t size;
    Strides strides;
  };

  // Merges an axis with the one before it if, for every array, one step of the latter spans all of the
  // former.
  void add(int64_t size, const std::array<Shape, N>& strides, size_t axis) {
    Axis next{size, {}};
    bool goes_on = !axes_.empty();
    for (size_t array = 0; array < N; ++array) {
      next.strides[array] = strides[array][axis];
      goes_on = goes_on && axes_.back().strides[array] == next.strides[array] * size;
    }
    if (goes_on) {
      next.size *= axes_.back().size;
      axes_.pop_back();
    }
    axes_.push_back(next);
  }

  std::vector<Axis> axes_;
};

}  // namespace airllm::cuda
