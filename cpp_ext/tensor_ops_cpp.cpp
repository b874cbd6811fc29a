// The `cpp` backend: NumPy arrays in and out, rows shared among threads, kernels from cpu/.
//
// One file is the whole build:
//   c++ -O3 -Wall -shared -std=c++17 -fPIC $(python3 -m pybind11 --includes)
//       -o tensor_ops_cpp$(python3-config --extension-suffix) tensor_ops_cpp.cpp
// (on one line) gives every instruction set; add -fopenmp for threads.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>

#include "arguments.h"
#include "cpu/targets.h"
#include "cpu/threads.h"
#include "results.h"

namespace py = pybind11;
using namespace arguments;

namespace {

std::atomic<const cpu::Kernels*> active{nullptr};
std::atomic<uint64_t> calls{0};

// A result that is larger than this is gone from the caches before anyone reads it.
constexpr int64_t kStreamedBytes = int64_t{16} << 20;

constexpr int64_t kFewRows = 8;  // up to here a product reads b as it lies: see cpu/matmul.inl
// The float32 products of one row for which that beats NumPy's BLAS: wide ones, and small ones.
constexpr int64_t kWide = 2048, kNarrow = 16, kSmall = 1 << 16;

// Runs `work` without the interpreter's lock where it is long enough for another thread to use it.
template <class Work>
void run(int64_t n, int64_t cost, int64_t step, const Work& work) {
  calls.fetch_add(1, std::memory_order_relaxed);
  if (n * cost < cpu::kWorthAThread) return work(0, n);
  const py::gil_scoped_release unlocked;
  cpu::parallel(n, step, cpu::parts(n, cost, step), work);
}

int64_t itemsize(DType dtype) { return dtype == cpu::kFloat32 ? 4 : 2; }

using MapKernels = cpu::MapKernel* const (cpu::Kernels::*)[cpu::kDTypes];

template <MapKernels kKernels>
PyObject* elementwise(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "out"};
  PyObject* values[2];
  place(op, values, names, 1, 1, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  results::Result out = results::result(op, values[1], x, x.ndim, x.shape, {{"x", &x, true}});
  cpu::MapKernel* const kernel = (active.load()->*kKernels)[x.dtype];
  const int64_t size = itemsize(x.dtype);
  run(x.size, 1, 1024, [&](int64_t begin, int64_t end) {
    kernel(out.data + begin * size, x.data + begin * size, end - begin, out.nbytes() > kStreamedBytes);
  });
  return out.give();
}

PyObject* softmax(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "out"};
  PyObject* values[2];
  place(op, values, names, 1, 1, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  if (x.ndim < 1) op.wrong_shape("x", x, "(... d)");
  results::Result out = results::result(op, values[1], x, x.ndim, x.shape, {{"x", &x, true}});
  if (!x.size) return out.give();
  cpu::RowsKernel* const kernel = active.load()->softmax[x.dtype];
  const int64_t dim = x.axis(1), row = dim * itemsize(x.dtype);
  run(x.size / dim, dim, 1, [&](int64_t begin, int64_t end) {
    kernel(out.data + begin * row, x.data + begin * row, end - begin, dim, out.nbytes() > kStreamedBytes);
  });
  return out.give();
}

PyObject* rms_norm(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "weight", "eps", "out"};
  PyObject* values[4];
  place(op, values, names, 3, 2, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  const Array weight = array(op, "weight", values[1]);
  check_dtype(op, "weight", weight, x, true);
  if (x.ndim < 1) op.wrong_shape("x", x, "(... d)");
  const int64_t dim = x.axis(1), row = dim * itemsize(x.dtype);
  if (weight.ndim != 1 || weight.size != dim)
    op.wrong_shape("weight", weight, "(d) with d=" + std::to_string(dim));
  const float eps = number(op, "eps", values[2], 1e-6f);
  results::Result out =
      results::result(op, values[3], x, x.ndim, x.shape, {{"x", &x, true}, {"weight", &weight, false}});
  if (!x.size) return out.give();
  cpu::RmsNormKernel* const kernel = active.load()->rms_norm[x.dtype][weight.dtype == cpu::kFloat32];
  run(x.size / dim, dim, 1, [&](int64_t begin, int64_t end) {
    kernel(out.data + begin * row, x.data + begin * row, weight.data, end - begin, dim, eps,
           out.nbytes() > kStreamedBytes);
  });
  return out.give();
}

py::object steal(PyObject* made) {
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

PyObject* of_numpy(const char* name) {
  return py::object(py::module_::import("numpy").attr(name)).release().ptr();
}

// A dense float32 product is NumPy's BLAS: a second one in the process would fight it for the cores.
// Where it overflows it is infinite, without a warning, as on every backend.
void numpy_matmul(const Array& a, const Array& b, const Array& out) {
  static PyObject* const matmul = of_numpy("matmul");
  static PyObject* const errstate = of_numpy("errstate");
  static PyObject* const all = py::make_tuple("all").release().ptr();
  static PyObject* const ignore = py::str("ignore").release().ptr();
  static PyObject* const enter = PyUnicode_InternFromString("__enter__");
  static PyObject* const exit = PyUnicode_InternFromString("__exit__");
  const py::object quiet = steal(PyObject_Vectorcall(errstate, &ignore, 0, all));
  steal(PyObject_CallMethodNoArgs(quiet.ptr(), enter));
  PyObject* const operands[] = {a.object, b.object, out.object};
  const auto same = py::reinterpret_steal<py::object>(PyObject_Vectorcall(matmul, operands, 3, nullptr));
  {
    const py::error_scope failed;  // keeps the error while errstate is left
    PyObject* const none[] = {quiet.ptr(), Py_None, Py_None, Py_None};
    steal(PyObject_VectorcallMethod(exit, none, 4, nullptr));
  }
  if (!same) throw py::error_already_set();
  calls.fetch_add(1, std::memory_order_relaxed);
}

// out (m, n) = a (m, k) @ b (k, n) by this project's own kernels.
void own_matmul(DType dtype, char* out, const char* a, const char* b, int64_t m, int64_t n, int64_t k) {
  const cpu::Kernels& kernels = *active.load();
  const bool few = m <= kFewRows, by_columns = few || n >= m;
  cpu::MatmulKernel* const kernel = (few ? kernels.matvec : kernels.matmul)[dtype];
  const int64_t items = by_columns ? n : m, step = by_columns ? 64 : 32;
  const int team = cpu::parts(items, (by_columns ? m : n) * k / 4 + 1, step);
  const size_t each = few ? kernels.matvec_workspace : kernels.matmul_workspace;
  const results::Workspace workspaces(each * team);
  std::atomic<size_t> next{0};
  calls.fetch_add(1, std::memory_order_relaxed);
  const py::gil_scoped_release unlocked;
  cpu::parallel(items, step, team, [&](int64_t begin, int64_t end) {
    cpu::MatmulPart part{n, k, 0, m, 0, n};
    (by_columns ? part.n0 : part.m0) = begin;
    (by_columns ? part.n1 : part.m1) = end;
    kernel(out, a, b, part, reinterpret_cast<float*>(workspaces.data() + next++ * each));
  });
}

void multiply(const Array& out, const Array& a, const Array& b, bool shared) {
  if (!out.size) return;
  if (!a.size) {
    std::memset(out.data, 0, out.nbytes());  // sums of nothing
    return;
  }
  const int64_t n = b.axis(1), k = a.axis(1), matrices = shared ? 1 : b.size / (k * n),
                m = out.size / n / matrices;
  const bool own = m == 1 && matrices == 1 && (n >= kWide || (n >= kNarrow && k * n <= kSmall));
  if (a.dtype == cpu::kFloat32 && !own) return numpy_matmul(a, b, out);
  const int64_t size = itemsize(a.dtype);
  for (int64_t i = 0; i < matrices; ++i)
    own_matmul(a.dtype, out.data + i * m * n * size, a.data + i * m * k * size, b.data + i * k * n * size, m,
               n, k);
}

std::string axes_of_b(const Array& a, bool with_batch) {
  std::string known = "(... k n) with k=" + std::to_string(a.axis(1));
  if (with_batch) known += ", ...=" + shape_text(a.ndim - 2, a.shape);
  return known;
}

PyObject* matmul(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
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

// The ops as Python functions, without the cost of a general argument converter.
using Body = PyObject*(const Op&, PyObject* const*, Py_ssize_t, PyObject*);

template <Body* kBody, const char* kName>
PyObject* entry(PyObject*, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  return python_call([&] { return kBody(Op{kName}, args, given, keywords); });
}

template <Body* kBody, const char* kName>
PyMethodDef method(const char* documentation) {
  const auto function = entry<kBody, kName>;
  return {kName, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, documentation};
}

constexpr char kRmsNorm[] = "rms_norm", kSilu[] = "silu", kGelu[] = "gelu", kSoftmax[] = "softmax",
               kMatmul[] = "matmul";

PyMethodDef methods[] = {
    method<rms_norm, kRmsNorm>("rms_norm($module, x, weight, eps=1e-06, *, out=None)\n--\n\n"
                               "Rows of x (..., d) scaled to unit root-mean-square, times weight (d,)."),
    method<elementwise<&cpu::Kernels::silu>, kSilu>("silu($module, x, *, out=None)\n--\n\nx * sigmoid(x)."),
    method<elementwise<&cpu::Kernels::gelu>, kGelu>("gelu($module, x, *, out=None)\n--\n\n"
                                                    "Gaussian error linear unit, tanh form."),
    method<softmax, kSoftmax>("softmax($module, x, *, out=None)\n--\n\nSoftmax over the last axis."),
    method<matmul, kMatmul>("matmul($module, a, b, *, out=None)\n--\n\n"
                            "a (..., m, k) @ b (..., k, n), or a b (k, n) that all share."),
    {nullptr, nullptr, 0, nullptr},
};

const cpu::Kernels* kernels_named(const std::string& isa) {
  std::string known;
  for (const cpu::Kernels* kernels : cpu::supported()) {
    if (isa == kernels->isa) return kernels;
    known += (known.empty() ? "" : ", ") + std::string(kernels->isa);
  }
  throw py::value_error("this CPU has no kernels for '" + isa + "'; it has: " + known);
}

const cpu::Kernels* kernels_at_import() {
  const char* wanted = std::getenv("AIRLLM_CPU_ISA");
  if (!wanted || !*wanted) return cpu::supported().front();
  try {
    return kernels_named(wanted);
  } catch (const py::value_error& error) {
    throw py::import_error(std::string("AIRLLM_CPU_ISA: ") + error.what());
  }
}

// Bandwidth probes: the fastest copy and read of float32 that these kernels can do.
void copy_all(py::object out, py::object x) {
  const Op op{"copy"};
  const Array from = array(op, "x", x.ptr());
  const Array to = checked_out(op, out.ptr(), from.dtype, from.ndim, from.shape, {{"x", &from, false}});
  if (from.dtype != cpu::kFloat32)
    op.wrong_type("x", std::string("has dtype ") + dtype_name(from.dtype), "float32");
  run(from.size, 1, 1024, [&](int64_t begin, int64_t end) {
    active.load()->copy(to.data + begin * 4, from.data + begin * 4, end - begin,
                        to.nbytes() > kStreamedBytes);
  });
}

float read_all(py::object x) {
  const Array from = array({"read"}, "x", x.ptr());
  std::atomic<float> any{0.f};
  run(from.nbytes() / 4, 1, 1024, [&](int64_t begin, int64_t end) {
    any.store(active.load()->read(from.data + begin * 4, end - begin));
  });
  return any;
}

constexpr bool kOpenMP =
#ifdef _OPENMP
    true;
#else
    false;
#endif

bool has_simd() { return std::string(active.load()->isa) != "scalar"; }

void use(py::handle module, const cpu::Kernels* kernels) {
  active = kernels;
  module.attr("simd_level") = kernels->isa;
  module.attr("has_simd") = has_simd();
}

py::list variants() {
  py::list names;
  for (const cpu::Kernels* kernels : cpu::supported()) names.append(kernels->isa);
  return names;
}

py::dict optimization_info() {
  const cpu::Features has = cpu::features();
  py::dict info;
  info["simd_level"] = active.load()->isa;
  info["has_simd"] = has_simd();
  info["lanes"] = active.load()->lanes;
  info["variants"] = variants();
  info["has_openmp"] = kOpenMP;
  info["num_threads"] = cpu::threads().load();
  info["has_avx"] = has.avx;
  info["has_avx2"] = has.avx2;
  info["has_fma"] = has.fma;
  info["has_avx512"] = has.avx512;
  info["has_neon"] = has.neon;
  info["compiler"] = __VERSION__;
  return info;
}

void set_num_threads(int n) {
  if (n < 1)
    throw py::value_error("set_num_threads: n has value " + std::to_string(n) + ", expected 1 or more");
  cpu::threads() = kOpenMP ? n : 1;
}

int threads_of(const std::string& wanted) {
  size_t used = 0;
  int n = 0;
  try {
    n = std::stoi(wanted, &used);
  } catch (const std::logic_error&) {
  }
  if (n < 1 || used != wanted.size())
    throw py::import_error("AIRLLM_NUM_THREADS has value '" + wanted + "', expected a whole number from 1");
  return n;
}

std::string device() {
  const int n = cpu::threads();
  return std::string("CPU (") + active.load()->isa + ", " + std::to_string(n) +
         (n == 1 ? " thread)" : " threads)");
}

}  // namespace

PYBIND11_MODULE(tensor_ops_cpp, m) {
  m.doc() = "CPU kernels for airllm, chosen for this CPU when the module loads (AIRLLM_CPU_ISA overrides).";
  if (const char* wanted = std::getenv("AIRLLM_NUM_THREADS")) set_num_threads(threads_of(wanted));
  cpu::run_alone_after_fork();
  results::keep_through_fork();
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw py::error_already_set();
  use(m, kernels_at_import());
  const cpu::Features has = cpu::features();
  m.attr("has_openmp") = kOpenMP;
  m.attr("has_fma") = has.fma;
  m.attr("has_avx") = has.avx;
  m.attr("has_avx2") = has.avx2;
  m.attr("has_avx512") = has.avx512;
  m.attr("has_neon") = has.neon;
  m.def("get_optimization_info", optimization_info, "What this CPU has and what the kernels use of it.");
  m.def("device", device, "One line: the instruction set and the threads in use.");
  m.def("variants", variants, "Instruction sets that run here, the best first; names for select().");
  const auto select = [self = m.ptr()](const std::optional<std::string>& isa) {
    use(self, isa ? kernels_named(*isa) : kernels_at_import());
  };
  m.def("select", select, py::arg("isa").none(true),
        "Use the kernels of this instruction set from now on (None: as at import); ValueError if this CPU "
        "cannot.");
  m.def("num_threads", [] { return cpu::threads().load(); }, "Most threads that an op uses.");
  m.def("set_num_threads", set_num_threads, py::arg("n"), "Use at most n threads in an op.");
  m.def("calls", [] { return calls.load(); }, "Kernels run so far in this process.");
  m.def(
      "release_memory", [] { return results::kept().release(); },
      "Return the freed result buffers that were kept to the system; their bytes.");
  m.def("copy", copy_all, py::arg("out"), py::arg("x"),
        "Copy float32, as fast as this memory allows: a bandwidth probe.");
  m.def("read", read_all, py::arg("x"), "Read an array, as fast as this memory allows: a bandwidth probe.");
}
