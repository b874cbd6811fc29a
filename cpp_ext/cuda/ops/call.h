// A call of an op: its arrays, its results, and how it runs: on copies of NumPy arrays, or on device arrays
// in place.
#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <vector>

#include "../arrays/outputs.h"
#include "../arrays/stored.h"

namespace airllm::cuda {

// Enqueues the op's kernels on a stream of the current device; every argument's `at` is set. Runs without the
// GIL.
using Launch = std::function<cudaError_t(cudaStream_t)>;

// Removes the gaps between the rows of a strided array; an axis of stride 0 stays one row.
inline void make_compact(Operand& x) {
  if (is_dense(x)) return;
  py::tuple index(x.shape.size());
  Shape kept = x.shape;
  for (size_t i = 0; i < x.shape.size(); ++i) {
    const bool repeated = x.strides[i] == 0;
    index[i] = repeated ? py::slice(0, 1, 1) : py::slice(0, x.shape[i], 1);
    if (repeated) kept[i] = 1;
  }
  const py::object view = py::reinterpret_borrow<py::object>(x.object)[index];
  x.keep = py::module_::import("numpy").attr("ascontiguousarray")(view);
  x.data = py::detail::array_proxy(x.keep.ptr())->data;
  const Shape strides = dense_strides(kept);
  for (size_t i = 0; i < x.shape.size(); ++i) x.strides[i] = x.strides[i] == 0 ? 0 : strides[i];
}

class Call {
 public:
  explicit Call(const Op& op) : op(op) {}

  // Adds an array argument whose axes are valid.
  const Operand& input(Operand x) {
    inputs_.push_back(std::move(x));
    Operand& in = inputs_.back();
    check_place(op, first(), in);
    in.span = span_of(in);
    if (in.on_host()) make_compact(in);
    return in;
  }

  // An argument that was not passed.
  static const Operand& absent() {
    static const Operand none;
    return none;
  }

  // Results are arrays of this operand's library, not of the first one's.
  void results_are_like(const Operand& x) { like_ = &x; }

  // Adds a result: a new array, or the caller's, which may be exactly one of the inputs `in_place`. To be
  // called after all inputs are added.
  const Operand& result(PyObject* out, DType dtype, const Shape& shape,
                        std::vector<const Operand*> in_place = {}, const char* name = "out") {
    if (arguments::present(out)) {
      results_.push_back({check_out(op, name, out, first(), dtype, shape), std::move(in_place)});
      results_.back().array.span = span_of(results_.back().array);
      check_overlaps(results_.back());
      return results_.back().array;
    }
    new_.push_back(new_result(like_ ? *like_ : first(), dtype, shape));
    results_.push_back({operand(op, name, new_.back().ptr(), {kFloats}), {}});
    return results_.back().array;
  }

  // Runs `launch`, unless the result is empty, and returns the result or a tuple of results. `out` is the
  // caller's `out` for several results.
  py::object run(const Launch& launch, PyObject* out = nullptr) {
    if (results_.front().array.size != 0)
      first().on_host() ? run_on_copies(launch) : run_where_arrays_lie(launch);
    if (arguments::present(out)) return py::reinterpret_borrow<py::object>(out);
    if (results_.size() == 1) return object_of(results_.front());
    py::tuple all(results_.size());
    for (size_t i = 0; i < results_.size(); ++i) all[i] = object_of(results_[i]);
    return all;
  }

  // The device that the op runs on.
  int device() const { return first().on_host() ? default_device() : first().device; }

  const Op op;
  Shape leading;  // the leading axes of all arrays that have some

 private:
  const Operand& first() const { return inputs_.front(); }

  static py::object object_of(const Output& out) {
    return py::reinterpret_borrow<py::object>(out.array.object);
  }

  void check_overlaps(const Output& out) const {
    for (const Operand& in : inputs_) {
      const auto& allowed = out.in_place;
      check_apart(op, in, out.array, std::find(allowed.begin(), allowed.end(), &in) != allowed.end());
    }
    for (const Output& other : results_) {
      if (&other != &out && !is_apart(other.array, out.array)) overlaps(op, out.array, other.array, false);
    }
  }

  void run_on_copies(const Launch& launch);
  void run_where_arrays_lie(const Launch& launch);

  std::deque<Operand> inputs_;
  std::deque<Output> results_;
  std::vector<py::object> new_;
  const Operand* like_ = nullptr;
};

// ---- NumPy arrays

inline int64_t stored_bytes(const Operand& x) {
  const auto [low, high] = span_of(x);
  return high - low;
}

inline void Call::run_on_copies(const Launch& launch) {
  const int device = default_device();
  const arguments::Unlocked released;
  DeviceGuard guard(device);
  const cudaStream_t stream = thread_stream();
  std::vector<Memory> memory;
  const auto allocate = [&](Operand& x) {
    memory.emplace_back(size_t(stored_bytes(x)), device, stream);
    x.at = memory.back().data();
  };
  for (Operand& in : inputs_) allocate(in);
  for (Output& out : results_) allocate(out.array);

  Finish finish(stream);  // it waits before the memory is freed
  for (const Operand& in : inputs_) {
    const size_t bytes = size_t(stored_bytes(in));
    if (bytes != 0) copy(in.at, in.data, bytes, cudaMemcpyHostToDevice, stream);
  }
  check(launch(stream), ("the launch of " + std::string(op.name)).c_str());
  for (const Output& out : results_)
    copy(out.array.data, out.array.at, size_t(out.array.nbytes()), cudaMemcpyDeviceToHost, stream);
  finish.now();
}

// ---- device arrays

// Runs on the first input's stream, after the work that produced the other arrays and before later work on
// their streams.
inline void Call::run_where_arrays_lie(const Launch& launch) {
  const arguments::Unlocked released;
  DeviceGuard guard(first().device);
  const cudaStream_t stream = first().home;
  std::vector<Operand*> all;
  for (Operand& in : inputs_) all.push_back(&in);
  for (Output& out : results_) all.push_back(&out.array);
  bool wait = false;
  for (Operand* x : all) {
    order(x->home, stream);
    x->at = x->data;
    wait = wait || x->released_any_time;
  }
  Finish finish(stream);  // also waits if a home stream could not be told to
  check(launch(stream), ("the launch of " + std::string(op.name)).c_str());
  for (const Operand* x : all) order(stream, x->home);
  wait ? finish.now() : finish.skip();
}

}  // namespace airllm::cuda
