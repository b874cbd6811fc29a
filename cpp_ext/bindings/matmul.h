// Products of matrices.
#pragma once
#include <cstring>

#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

constexpr int64_t kFewRows = 8;  // up to here a product reads b as it lies: see cpu/few_rows.inl

inline py::object steal(PyObject* made) {
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

inline PyObject* of_numpy(const char* name) {
  return py::object(py::module_::import("numpy").attr(name)).release().ptr();
}

// A dense float32 product is NumPy's BLAS: a second one in the process would fight it for the cores.
// Where it overflows it is infinite, without a warning, as on every backend.
inline void numpy_matmul(PyObject* a, PyObject* b, PyObject* out) {
  static PyObject* const matmul = of_numpy("matmul");
  static PyObject* const errstate = of_numpy("errstate");
  static PyObject* const all = py::make_tuple("all").release().ptr();
  static PyObject* const ignore = py::str("ignore").release().ptr();
  static PyObject* const enter = PyUnicode_InternFromString("__enter__");
  static PyObject* const exit = PyUnicode_InternFromString("__exit__");
  const py::object quiet = steal(PyObject_Vectorcall(errstate, &ignore, 0, all));
  steal(PyObject_CallMethodNoArgs(quiet.ptr(), enter));
  PyObject* const operands[] = {a, b, out};
  const auto same = py::reinterpret_steal<py::object>(PyObject_Vectorcall(matmul, operands, 3, nullptr));
  {
    const py::error_scope failed;  // keeps the error while errstate is left
    PyObject* const none[] = {quiet.ptr(), Py_None, Py_None, Py_None};
    steal(PyObject_VectorcallMethod(exit, none, 4, nullptr));
  }
  if (!same) throw py::error_already_set();
  calls.fetch_add(1, std::memory_order_relaxed);
}

// Up to eight rows: threads share columns of b or its rows. A thread's rows lie together in memory, which one
// row of a is read at the speed of; its columns need no sums over the threads.
inline bool shares_columns(int64_t m, int64_t n, int64_t k) {
  if (m == 1 && 4 * k >= n && k >= 256 * cpu::most_threads()) return false;
  return n >= 1024;
}

inline void few_rows(DType dtype, char* out, const char* a, const char* b, int64_t m, int64_t n, int64_t k) {
  const cpu::Kernels& kernels = *active.load();
  const bool by_columns = shares_columns(m, n, k);
  const int64_t items = by_columns ? n : k, step = by_columns ? 64 : 128;
  const int64_t work = k * (m + n) / 4 + m * n * k / 16;
  const int team = cpu::parts(work, 1, std::max<int64_t>(work * step / items, 1));
  const int64_t size = itemsize(dtype);
  const auto part_of = [&](float* totals, int64_t begin, int64_t end) {
    if (!by_columns) return kernels.few_rows[dtype](totals, a, b, {m, n, k, 0, n, begin, end});
    kernels.few_rows[dtype](totals, a, b, {m, n, k, begin, end, 0, k});
    for (int64_t i = 0; i < m; ++i)
      kernels.sum_parts[dtype](out + (i * n + begin) * size, totals + i * (end - begin), 1, end - begin);
  };
  if (work < cpu::kWorthAThread && m * n <= 2048) {
    float totals[2048];
    part_of(totals, 0, items);
    if (!by_columns) kernels.sum_parts[dtype](out, totals, 1, m * n);
    return;
  }
  const results::Workspace totals(team * m * n * sizeof(float));
  const auto of_thread = [&](int i) { return reinterpret_cast<float*>(totals.data()) + i * m * n; };
  std::atomic<int> next{0};
  const py::gil_scoped_release unlocked;
  cpu::parallel(items, step, team,
                [&](int64_t begin, int64_t end) { part_of(of_thread(next++), begin, end); });
  if (!by_columns) kernels.sum_parts[dtype](out, of_thread(0), next, m * n);
}

// Many rows.
inline void many_rows(DType dtype, char* out, const char* a, const char* b, int64_t m, int64_t n, int64_t k) {
  const cpu::Kernels& kernels = *active.load();
  const bool by_columns = n >= m;
  const int64_t items = by_columns ? n : m, step = 32;
  const int team = cpu::parts(items, (by_columns ? m : n) * k / 4 + 1, step);
  const results::Workspace workspaces(kernels.matmul_workspace * team);
  std::atomic<size_t> next{0};
  const py::gil_scoped_release unlocked;
  cpu::parallel(items, step, team, [&](int64_t begin, int64_t end) {
    cpu::MatmulPart part{n, k, 0, m, 0, n};
    (by_columns ? part.n0 : part.m0) = begin;
    (by_columns ? part.n1 : part.m1) = end;
    kernels.matmul[dtype](out, a, b, part,
                          reinterpret_cast<float*>(workspaces.data() + next++ * kernels.matmul_workspace));
  });
}

inline void multiply(const Array& out, const Array& a, const Array& b, bool shared) {
  if (!out.size) return;
  if (!a.size) {
    std::memset(out.data, 0, out.nbytes());  // sums of nothing
    return;
  }
  const int64_t n = b.axis(1), k = a.axis(1), matrices = shared ? 1 : b.size / (k * n),
                m = out.size / n / matrices;
  const bool own = m <= kFewRows && matrices == 1;
  if (a.dtype == cpu::kFloat32 && !own) return numpy_matmul(a.object, b.object, out.object);
  const int64_t size = itemsize(a.dtype);
  const auto product = m <= kFewRows ? few_rows : many_rows;
  calls.fetch_add(1, std::memory_order_relaxed);
  for (int64_t i = 0; i < matrices; ++i)
    product(a.dtype, out.data + i * m * n * size, a.data + i * m * k * size, b.data + i * k * n * size, m, n,
            k);
}

inline std::string axes_of_b(const Array& a, bool with_batch) {
  std::string known = "(... k n) with k=" + std::to_string(a.axis(1));
  if (with_batch) known += ", ...=" + shape_text(a.ndim - 2, a.shape);
  return known;
}

inline PyObject* matmul(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"a", "b", "out"};
  PyObject* values[3];
  place(op, values, names, 2, 2, args, given, keywords);
  const Array a = array(op, "a", values[0]);
  const Array b = array(op, "b", values[1]);
  check_dtype(op, "b", b, a, false);
  if (a.ndim < 2) op.wrong_shape("a", a, "(... m k)");
  if (b.ndim < 2 || b.axis(2) != a.axis(1)) op.wrong_shape("b", b, axes_of_b(a, false));
  const bool shared = b.ndim == 2;
  if (!shared && (b.ndim != a.ndim || std::memcmp(a.shape, b.shape, sizeof(*a.shape) * (a.ndim - 2)) != 0))
    op.wrong_shape("b", b, axes_of_b(a, true));
  std::vector<py::ssize_t> shape(a.shape, a.shape + a.ndim);
  shape.back() = b.axis(1);
  results::Result out =
      results::result(op, values[2], a, a.ndim, shape.data(), {{"a", &a, false}, {"b", &b, false}});
  multiply(out, a, b, shared);
  return out.give();
}

}  // namespace ops
