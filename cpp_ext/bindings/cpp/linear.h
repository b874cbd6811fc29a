// Products with weights (n, k), rows as in checkpoints, in their stored form.
#pragma once
#include "../../cpu/threads/parallel_linear.h"
#include "call.h"
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

// `many`: by the kernels for many rows, however few there are.
inline void multiply_stored(const Array& out, const Array& x, const Stored& weight, const float* bias,
                            bool many = false) {
  const int64_t n = weight.axis(2), k = weight.axis(1);
  const cpu::threaded::Linear call{x.dtype,      out.data, x.data, weight.format,     weight.data(), bias,
                                   out.size / n, n,        k,      weight.interleaved};
  const bool floats = call.format == cpu::kF32 && call.dtype == cpu::kFloat32;
  if (floats && k && (many || call.m > cpu::rows_as_stored(call.format)))
    return linear_by_numpy(out, x, call);
  run(call.work(), [&] { cpu::threaded::linear(*active.load(), call, many); });
}

template <bool kMany>
inline void linear_of(const Array& out, const Array& x, const Stored& weight, const Array& bias) {
  std::vector<float> wide(bias.object ? bias.size : 0);
  if (bias.object) active.load()->stored.widen(bias.dtype, wide.data(), bias.data, bias.size);
  multiply_stored(out, x, weight, bias.object ? wide.data() : nullptr, kMany);
}
constexpr auto linear = linear_of<false>;

// linear(), by the kernels for many rows, however few there are.
inline PyObject* linear_of_many_rows(const Op&, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  return run_call<kLinear, linear_of<true>>(args, nargs, keywords);
}

inline void matmul_vec(const Array& out, const Stored& w, const Array& x) {
  multiply_stored(out, x, w, nullptr);
}

}  // namespace ops
