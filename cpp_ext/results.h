// Where results lie: NumPy's own memory for small ones, and a few kept buffers for large ones. Fresh
// pages from the operating system cost two to three times what a kernel needs to fill them.
#pragma once
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "arguments.h"

namespace results {

namespace py = pybind11;

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLarge = size_t{1} << 20;       // from here on a buffer is kept
constexpr size_t kMostKept = size_t{512} << 20;  // bytes in free buffers, for the process

struct Buffer {
  void* data;
  size_t bytes;
};

// Freed buffers, the latest last.
class Kept {
 public:
  Buffer take(size_t bytes) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto it = free_.rbegin(); it != free_.rend(); ++it)
        if (it->bytes == bytes) {
          const Buffer found = *it;
          free_.erase(std::next(it).base());
          return found;
        }
    }
    void* data = nullptr;
    if (posix_memalign(&data, kHugePage, bytes)) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(data, bytes, MADV_HUGEPAGE);
#endif
    return {data, bytes};
  }

  void give(Buffer buffer) noexcept {
    if (buffer.bytes > kMostKept) return std::free(buffer.data);
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      free_.push_back(buffer);
    } catch (const std::bad_alloc&) {
      return std::free(buffer.data);
    }
    size_t total = 0;
    for (const Buffer& b : free_) total += b.bytes;
    while (total > kMostKept) total -= drop_oldest();
  }

  size_t release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t total = 0;
    while (!free_.empty()) total += drop_oldest();
    return total;
  }

  // A child of a fork must not find the lock held by a thread that it does not have.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  size_t drop_oldest() {
    const Buffer oldest = free_.front();
    std::free(oldest.data);
    free_.erase(free_.begin());
    return oldest.bytes;
  }

  std::mutex mutex_;
  std::vector<Buffer> free_;
};

inline Kept& kept() {
  static Kept* const forever = new Kept;  // arrays may outlive static destruction
  return *forever;
}

inline void keep_through_fork() {
  const auto unlock = [] { kept().unlock(); };
  pthread_atfork([] { kept().lock(); }, unlock, unlock);
}

// Memory for the time of a kernel.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : buffer_(kept().take(bytes)) {}
  ~Workspace() { kept().give(buffer_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  char* data() const { return static_cast<char*>(buffer_.data); }

 private:
  Buffer buffer_;
};

inline PyObject* new_array(PyObject* descr, int ndim, const py::ssize_t* shape, void* data) {
  const auto& numpy = py::detail::npy_api::get();
  Py_INCREF(descr);  // NumPy takes a reference away
  PyObject* made = numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, descr, ndim, shape, nullptr, data,
                                               data ? py::detail::npy_api::NPY_ARRAY_WRITEABLE_ : 0, nullptr);
  if (!made) throw py::error_already_set();
  return made;
}

inline PyObject* new_large_array(PyObject* descr, int ndim, const py::ssize_t* shape, size_t bytes) {
  const Buffer buffer = kept().take(bytes);
  PyObject* const owner = PyCapsule_New(buffer.data, nullptr, [](PyObject* capsule) {
    const size_t size = reinterpret_cast<size_t>(PyCapsule_GetContext(capsule));
    kept().give({PyCapsule_GetPointer(capsule, nullptr), size});
  });
  if (!owner) throw py::error_already_set();
  PyCapsule_SetContext(owner, reinterpret_cast<void*>(buffer.bytes));
  py::object owned = py::reinterpret_steal<py::object>(owner);
  PyObject* made = new_array(descr, ndim, shape, buffer.data);
  py::detail::npy_api::get().PyArray_SetBaseObject_(made, owned.release().ptr());
  return made;
}

// What an op gives: an array, and the reference to it that its caller gets. Hidden, as pybind11's own
// types are, whatever the compiler is told.
struct __attribute__((visibility("hidden"))) Result : arguments::Array {
  py::object owned;
  PyObject* give() { return owned.release().ptr(); }
};

// Two results as Python gets them: the caller's own pair of arrays, or a tuple.
inline PyObject* both(PyObject* out, Result& a, Result& b) {
  if (arguments::present(out)) return py::reinterpret_borrow<py::object>(out).release().ptr();
  return py::make_tuple(std::move(a.owned), std::move(b.owned)).release().ptr();
}

// A new array.
inline Result new_result(PyObject* descr, arguments::DType dtype, int ndim, const py::ssize_t* shape) {
  arguments::Array made;
  made.dtype = dtype;
  made.ndim = ndim;
  for (int i = 0; i < ndim; ++i) made.size *= shape[i];
  const size_t bytes = made.nbytes();
  made.object =
      bytes < kLarge ? new_array(descr, ndim, shape, nullptr) : new_large_array(descr, ndim, shape, bytes);
  made.data = py::detail::array_proxy(made.object)->data;
  made.shape = reinterpret_cast<const py::ssize_t*>(py::detail::array_proxy(made.object)->dimensions);
  return {made, py::reinterpret_steal<py::object>(made.object)};
}

// The caller's `out`, checked.
inline Result given_result(const arguments::Op& op, PyObject* out, arguments::DType dtype, int ndim,
                           const py::ssize_t* shape, std::initializer_list<arguments::Input> inputs,
                           const char* name = "out") {
  return {arguments::checked_out(op, out, dtype, ndim, shape, inputs, name),
          py::reinterpret_borrow<py::object>(out)};
}

// A new array of `like`'s dtype, or the caller's `out`.
inline Result result(const arguments::Op& op, PyObject* out, const arguments::Array& like, int ndim,
                     const py::ssize_t* shape, std::initializer_list<arguments::Input> inputs,
                     const char* name = "out") {
  if (arguments::present(out)) return given_result(op, out, like.dtype, ndim, shape, inputs, name);
  return new_result(py::detail::array_proxy(like.object)->descr, like.dtype, ndim, shape);
}

}  // namespace results
