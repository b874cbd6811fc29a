// The interpreter lock (GIL): how a native function releases it, takes it again, and calls Python.
//
// When the interpreter shuts down, Python 3.10 to 3.13 end a daemon thread that takes the lock by unwinding
// its stack. Destructors would then access Python objects without the lock, and the first noexcept function
// would end the whole process with SIGABRT. Here such a thread blocks until the process exits, as in Python
// 3.14 and later.
#pragma once
#include <pybind11/pybind11.h>

#include <atomic>
#include <new>
#if defined(__GLIBCXX__) && !defined(_WIN32)  // where a thread is ended by unwinding
#define AIRLLM_UNWOUND_THREADS
#include <cxxabi.h>
#include <unistd.h>
#endif

namespace arguments {

namespace py = pybind11;

// Returns the result of `call`, which takes the lock or may do so: any call of Python code, since it releases
// the lock now and then. No destructor may be between it and this function.
template <class Call>
auto unless_ended(const Call& call) -> decltype(call()) {
#ifdef AIRLLM_UNWOUND_THREADS
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

// Takes a new reference, or throws the pending error.
inline py::object steal(PyObject* object) {
  if (!object) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

// Takes what `call`, which runs Python code, returns, or throws its error. As for unless_ended, no destructor
// may be in `call`.
template <class Call>
py::object call_into_python(const Call& call) {
  return steal(unless_ended(call));
}

// A new reference to an attribute of a module.
inline py::object import_attribute(const char* module, const char* attribute) {
  return call_into_python([=]() -> PyObject* {
    PyObject* const found = PyImport_ImportModule(module);
    PyObject* const value = found ? PyObject_GetAttrString(found, attribute) : nullptr;
    Py_XDECREF(found);
    return value;
  });
}

// The object that `make` returns, one for each type of `make`, kept for the life of the process. Several
// threads may create it at first, and one result is kept. A static with an initialiser would hold a C++ lock
// while an import releases the interpreter lock. A second thread would then wait for the C++ lock with the
// interpreter lock in hand: a deadlock.
template <class Make>
PyObject* kept_object(const Make& make) {
  static std::atomic<PyObject*> kept{nullptr};
  if (PyObject* const found = kept.load(std::memory_order_acquire)) return found;
  py::object object = make();
  PyObject* first = nullptr;
  if (!kept.compare_exchange_strong(first, object.ptr(), std::memory_order_acq_rel)) return first;
  return object.release().ptr();
}

// Turns what a Python function may throw into a Python error; for the outermost frame of a native function.
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
