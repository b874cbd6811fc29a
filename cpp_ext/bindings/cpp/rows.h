// Ops that compute each row (the last axis) independently.
#pragma once
#include "../../cpu/threads/parallel_rows.h"
#include "broadcast.h"
#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

// The rows of an array with at least one axis.
inline cpu::threaded::AllRows rows_of(const Array& x) {
  const int64_t dim = x.axis(1);
  return {x.dtype, dim ? x.size / dim : 0, dim};
}

inline cpu::AnyValues values_of(const Array& a) { return {a.data, a.dtype}; }

inline void rms_norm(const Array& out, const Array& x, const Array& weight, float eps) {
  run(x.size,
      [&] { cpu::threaded::rms_norm(*active.load(), rows_of(x), out.data, x.data, values_of(weight), eps); });
}

inline void add_rms_norm(const Array& sum, const Array& normed, const Array& x, const Array& residual,
                         const Array& weight, float eps) {
  run(x.size, [&] {
    cpu::threaded::add_rms_norm(*active.load(), rows_of(x), sum.data, normed.data, x.data, residual.data,
                                values_of(weight), eps);
  });
}

inline void layer_norm(const Array& out, const Array& x, const Array& weight, const Array& bias, float eps) {
  run(x.size, [&] {
    cpu::threaded::layer_norm(*active.load(), rows_of(x), out.data, x.data, values_of(weight),
                              values_of(bias), eps);
  });
}

// Walks the rows of arrays whose leading axes are broadcast to those of x.
template <class... Arrays>
Walk<sizeof...(Arrays)> walk_along(const Array& x, const Arrays&... arrays) {
  std::array<Steps, sizeof...(Arrays)> steps;
  size_t i = 0;
  (broadcast(steps[i++], arrays, 1, x.ndim - 1, x.shape), ...);
  return {x.ndim - 1, x.shape, steps};
}

inline void softmax(const Array& out, const Array& x, float scale, const Array& mask) {
  const cpu::Kernels& kernels = *active.load();
  if (!mask.object)
    return run(x.size, [&] { cpu::threaded::softmax(kernels, rows_of(x), out.data, x.data, scale); });
  const auto walk = walk_along(x, mask);
  run(x.size,
      [&] { cpu::threaded::softmax(kernels, rows_of(x), out.data, x.data, scale, values_of(mask), walk); });
}

inline void apply_rope(const Array& out, const Array& x, const Array& cos, const Array& sin,
                       bool interleaved) {
  const auto walk = walk_along(x, cos, sin);
  run(x.size, [&] {
    cpu::threaded::apply_rope(*active.load(), rows_of(x), out.data, x.data, values_of(cos), values_of(sin),
                              walk, cos.axis(1), interleaved);
  });
}

}  // namespace ops
