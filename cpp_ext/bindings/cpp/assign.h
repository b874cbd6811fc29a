// target[...] = source, from float32 to any of the float dtypes. NumPy converts one value at a time when it
// narrows.
#pragma once
#include "attention.h"

namespace [[gnu::visibility("hidden")]] ops {

inline PyObject* assign(const Op& op, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  static const char* const names[] = {"target", "source"};
  PyObject* values[2];
  place(op, values, names, 2, 2, args, nargs, keywords);
  const Array source = strided_array(op, "source", values[1]);
  if (source.dtype != cpu::kFloat32)
    op.wrong_type("source", std::string("has dtype ") + dtype_name(source.dtype), "float32");
  if (!source.ndim) op.wrong_shape("source", source, "(... n)");
  const Array any = strided_array(op, "target", values[0]);
  const Array target = check_out(op, values[0], any.dtype, source.ndim, source.shape,
                                 {{"source", &source, false}}, "target", true);
  if (!target.size) Py_RETURN_NONE;
  const int64_t n = target.axis(1), rows = target.size / n;
  std::array<Steps, 2> steps;
  broadcast(steps[0], target, 1, target.ndim - 1, target.shape);
  broadcast(steps[1], source, 1, target.ndim - 1, target.shape);
  const cpu::Walk<2> walk(target.ndim - 1, target.shape, steps);
  const auto narrow = active.load()->attention.narrow[target.dtype];
  run(rows * n, [&] {
    cpu::share(rows, n, 1, [&](int64_t begin, int64_t end) {
      walk.runs(begin, end, [&](int64_t, int64_t count, const std::array<int64_t, 2>& at) {
        for (int64_t i = 0; i < count; ++i)
          narrow(target.data + at[0] + i * walk.step(0),
                 reinterpret_cast<const float*>(source.data + at[1] + i * walk.step(1)), n, 1.f);
      });
    });
  });
  Py_RETURN_NONE;
}

}  // namespace ops
