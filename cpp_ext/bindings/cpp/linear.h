// Products with weights (n, k), rows as in checkpoints, in their stored form.
#pragma once
#include "../../cpu/threads/parallel_linear.h"
#include "formats.h"
#include "matmul.h"

namespace [[gnu::visibility("hidden")]] ops {

// A dense (rows, columns) array of x's dtype that borrows memory.
inline py::object matrix_of(const Array& like, const char* data, int64_t rows, int64_t columns) {
  const py::ssize_t shape[] = {rows, columns};
  return steal(
      results::new_array(py::detail::array_proxy(like.object)->descr, 2, shape, const_cast<char*>(data)));
}

// A dense float32 product of many rows uses NumPy's BLAS, as in matmul().
inline void linear_by_numpy(const Array& out, const Array& x, const cpu::threaded::Linear& call) {
  const py::object rows = matrix_of(x, x.data, call.m, call.k),
                   result = matrix_of(x, out.data, call.m, call.n),
                   columns = matrix_of(x, call.weight, call.n, call.k).attr("T");
  numpy_matmul(rows.ptr(), columns.ptr(), result.ptr());
  cpu::threaded::add_bias(active.load()->stored, call);
}

inline void multiply_stored(const Array& out, const Array& x, const Stored& weight, const float* bias) {
  const int64_t n = weight.axis(2), k = weight.axis(1);
  const cpu::threaded::Linear call{x.dtype,      out.data, x.data, weight.format,     weight.data(), bias,
                                   out.size / n, n,        k,      weight.interleaved};
  const bool floats = call.format == cpu::kF32 && call.dtype == cpu::kFloat32;
  if (floats && k && call.m > cpu::rows_as_stored(call.format)) return linear_by_numpy(out, x, call);
  run(call.work(), [&] { cpu::threaded::linear(*active.load(), call); });
}

inline void linear(const Array& out, const Array& x, const Stored& weight, const Array& bias) {
  std::vector<float> wide(bias.object ? bias.size : 0);
  if (bias.object) active.load()->stored.widen(bias.dtype, wide.data(), bias.data, bias.size);
  multiply_stored(out, x, weight, bias.object ? wide.data() : nullptr);
}

inline void matmul_vec(const Array& out, const Stored& w, const Array& x) {
  multiply_stored(out, x, w, nullptr);
}

}  // namespace ops
