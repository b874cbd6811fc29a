// What every op of the `cpp` backend needs: the current kernels, threads, and calls from Python.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <string>
#include <utility>

#include "../../cpu/targets/isa.h"
#include "../../cpu/threads/parallel.h"
#include "../arguments.h"
#include "../results.h"

namespace [[gnu::visibility("hidden")]] ops {

namespace py = pybind11;
using namespace arguments;

// The current instruction set: the process's, or that of a thread that has switched to another one.
class Active {
 public:
  const cpu::Kernels* load() const { return own_ ? own_ : process_.load(); }
  void operator=(const cpu::Kernels* kernels) { process_ = kernels; }
  // Sets this thread's kernels (null: the process's) and returns the previous ones.
  const cpu::Kernels* switch_to(const cpu::Kernels* kernels) { return std::exchange(own_, kernels); }

 private:
  std::atomic<const cpu::Kernels*> process_{nullptr};
  inline static thread_local const cpu::Kernels* own_ = nullptr;
};

inline Active active;
inline std::atomic<uint64_t> calls{0};  // kernels run so far

// A scope in which this thread's ops use another instruction set (null: the process's) and at most this many
// threads (0: the process's number).
class Switched {
 public:
  Switched(const cpu::Kernels* kernels, int threads)
      : kernels_(active.switch_to(kernels)), threads_(std::exchange(cpu::own_threads(), threads)) {}
  ~Switched() {
    active.switch_to(kernels_);
    cpu::own_threads() = threads_;
  }
  Switched(const Switched&) = delete;
  Switched& operator=(const Switched&) = delete;

 private:
  const cpu::Kernels* const kernels_;
  const int threads_;
};

// Runs a kernel. It releases the interpreter lock if the work, in elements of an elementwise op, is long
// enough for another thread to benefit.
template <class Call>
inline void run(int64_t work, const Call& call) {
  calls.fetch_add(1, std::memory_order_relaxed);
  if (work < cpu::kWorthAThread) return call();
  const Unlocked unlocked;
  call();
}

// Runs work(begin, end) in the same way, shared among threads.
template <class Work>
inline void run(int64_t n, int64_t cost, int64_t step, const Work& work) {
  run(n * cost, [&] { cpu::share(n, cost, step, work); });
}

// The ops as Python functions, without the cost of a general argument converter.
using Body = PyObject*(const Op&, PyObject* const*, Py_ssize_t, PyObject*);

template <Body* kBody, const char* kName>
PyObject* entry(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  return python_call([&] { return kBody(Op{kName}, args, nargs, keywords); });
}

using Function = PyObject*(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

inline PyMethodDef method(const char* name, Function* function, const char* documentation) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, documentation};
}

template <Body* kBody, const char* kName>
PyMethodDef method(const char* documentation) {
  return method(kName, entry<kBody, kName>, documentation);
}

}  // namespace ops
