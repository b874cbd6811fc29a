// Maps the rows of a result to those of arrays that are broadcast along leading axes: sizes and strides in
// the form of the kernels (leading_start() of gpu_kernels/common/dynamic_dtype.h).
#pragma once

#include <algorithm>
#include <vector>

#include "../launch/launch.h"
#include "operand.h"

namespace airllm::cuda {

struct Axis {
  int64_t size, stride;
};

// The strides of an array along a result's leading axes; 0 for a broadcast axis.
inline Shape strides_along(const Shape& leading, const Operand& x, size_t inner) {
  Shape strides(leading.size(), 0);
  if (!x) return strides;
  const size_t own = x.shape.size() - inner;
  for (size_t i = 0; i < own; ++i) {
    if (x.shape[i] != 1) strides[leading.size() - own + i] = x.strides[i];
  }
  return strides;
}

// The axes along which the array advances. Axes that one stride can step through are merged.
inline std::vector<Axis> merge_axes(const Shape& sizes, const Shape& strides) {
  std::vector<Axis> axes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    if (!axes.empty() && axes.back().stride == strides[i] * sizes[i]) {
      axes.back() = {axes.back().size * sizes[i], strides[i]};
    } else {
      axes.push_back({sizes[i], strides[i]});
    }
  }
  return axes;
}

// NotImplementedError: if arrays are in host memory, the op's definition runs instead.
[[noreturn]] inline void not_implemented(const Op& op, const Operand& x, const std::string& found,
                                         const std::string& expected) {
  PyErr_SetString(PyExc_NotImplementedError, op.says(x.name, found, expected).c_str());
  throw py::error_already_set();
}

inline Rows4 rows4(const Op& op, const Shape& leading, const Operand& x, size_t inner) {
  std::vector<Axis> axes = merge_axes(leading, strides_along(leading, x, inner));
  if (axes.size() > 4)
    not_implemented(op, x, "is broadcast along " + std::to_string(axes.size()) + " groups of axes",
                    "at most 4");
  axes.insert(axes.begin(), 4 - axes.size(), {1, 0});
  return {{axes[1].size, axes[2].size, axes[3].size},
          {axes[0].stride, axes[1].stride, axes[2].stride, axes[3].stride}};
}

inline AnyArray any_array(const Operand& x) {
  if (!x) return {nullptr, kNoArray};
  constexpr uint32_t types[] = {kAnyF32, kAnyF16, kAnyBF16, kAnyBool, kNoArray, kAnyI32, kAnyI64};
  return {x.at, types[int(x.dtype)]};
}

}  // namespace airllm::cuda
