// The interpreter's lock: how a native function lets go of it, takes it again, and calls Python.
//
// When the interpreter ends, Python 3.10 to 3.13 end a daemon thread that asks for the lock by unwinding its
// stack. Destructors would then touch Python's objects without the lock, and the first function that is
// noexcept would end the whole process with SIGABRT. Here such a thread waits until the process is gone, as
// Python itself lets it do since 3.14.
#pragma once
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <new>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace arguments {

namespace py = pybind11;

// What `call` gives, which asks for the lock or may do so: any call of Python code, which lets go of it now
// and then. There must be no destructor between it and here.
template <class Call>
auto unless_ended(const Call& call) -> decltype(call()) {
#ifdef __GLIBCXX__
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
#else
  return call();
#endif
}

// A scope without the lock.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    unless_ended([this] { PyEval_RestoreThread(state_); });
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* const state_;
};

// A new reference, or the error that there is instead of one.
inline py::object steal(PyObject* made) {
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// The object that `make` gives, for each type of `make`, kept for the life of the process. Several threads
// may make it at first, and one of them has its way: a static with an initialiser would hold a lock of C++
// while an import lets go of the interpreter's, and a second thread would wait for the first lock with the
// second in hand.
template <class Make>
PyObject* kept_object(const Make& make) {
  static std::atomic<PyObject*> kept{nullptr};
  if (PyObject* const found = kept.load(std::memory_order_acquire)) return found;
  py::object made = make();
  PyObject* first = nullptr;
  if (!kept.compare_exchange_strong(first, made.ptr(), std::memory_order_acq_rel)) return first;
  return made.release().ptr();
}

// What a Python function may throw, as Python's own error; for the outermost frame of a native function.
template <class F>
PyObject* python_call(const F& body) noexcept {
  return unless_ended([&]() -> PyObject* {
    try {
      return body();
    } catch (py::error_already_set& error) {
      error.restore();
    } catch (const py::builtin_exception& error) {
      error.set_error();
    } catch (const std::bad_alloc&) {
      PyErr_NoMemory();
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
  });
}

}  // namespace arguments
