// How an op runs once its arguments are checked: on copies of NumPy arrays, or on device arrays where they
// lie.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "operand.h"

namespace airllm::cuda {

// Puts the op's kernels on a stream of the current device: (out, the inputs in their order, device, stream).
using Launch = std::function<void(void*, const std::vector<void*>&, int, cudaStream_t)>;

struct Call {
  Op op;
  std::vector<const char*> names;  // of the inputs
  std::vector<Operand> inputs;
  Shape out_shape;
  bool may_be_in_place;  // out may be exactly the first input
};

inline const Operand& first(const Call& call) { return call.inputs.front(); }

// All arguments lie on one device, or all in host memory.
inline void check_place(const Call& call, const char* name, const Operand& x) {
  if (x.device == first(call).device) return;
  std::string remedy;
  if (x.on_host() && std::string(name) != "out")
    remedy = " (pass tensor_ops_cuda.to_device(" + std::string(name) + "))";
  call.op.wrong_type(name, "has " + x.place(), first(call).place() + remedy);
}

inline void check_apart(const Call& call, const char* name, const Operand& in, const Operand& out,
                        bool in_place) {
  const bool itself = in_place && in.array.data == out.array.data && in.array.nbytes() == out.array.nbytes();
  const bool apart = in.array.data + in.array.nbytes() <= out.array.data ||
                     out.array.data + out.array.nbytes() <= in.array.data;
  if (itself || apart) return;
  const std::string expected =
      "expected memory of its own" + (in_place ? std::string(" or exactly ") + name : "");
  throw py::value_error(std::string(call.op.name) + ": out overlaps " + name + ", " + expected);
}

inline bool is_writeable(const Operand& x) {
  if (!x.on_host()) return !x.read_only;
  return (py::detail::array_proxy(x.array.object)->flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_) != 0;
}

// The checks of `out=`, in the words of the other backends.
inline Operand checked_out(const Call& call, PyObject* object) {
  Operand out = operand(call.op, "out", object);
  check_place(call, "out", out);
  const int ndim = int(call.out_shape.size());
  if (!arguments::same_shape(out.array, ndim, call.out_shape.data())) {
    call.op.wrong_shape("out", out.array, arguments::shape_text(ndim, call.out_shape.data()));
  }
  arguments::check_dtype(call.op, "out", out.array, first(call).array, false);
  if (!is_writeable(out))
    throw py::value_error(std::string(call.op.name) + ": out is read-only, expected a writeable array");
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    check_apart(call, call.names[i], call.inputs[i], out, call.may_be_in_place && i == 0);
  }
  return out;
}

// ---- results of the library that the first input came from

inline py::object torch_empty(const Call& call) {
  const py::object x = py::reinterpret_borrow<py::object>(first(call).array.object);
  return py::module_::import("torch").attr("empty")(
      as_tuple(call.out_shape), py::arg("dtype") = x.attr("dtype"), py::arg("device") = x.attr("device"));
}

inline py::object cupy_empty(const Call& call) {
  const WithinDevice within(Library::cupy, first(call).device);
  const py::object x = py::reinterpret_borrow<py::object>(first(call).array.object);
  return py::module_::import("cupy").attr("empty")(as_tuple(call.out_shape),
                                                   py::arg("dtype") = x.attr("dtype"));
}

// PyTorch and CuPy allocate their results themselves, under their own rules for memory and streams.
inline py::object new_result(const Call& call) {
  const Operand& x = first(call);
  switch (x.library) {
    case Library::numpy: {
      PyObject* dtype = py::detail::array_proxy(x.array.object)->descr;
      return new_numpy(py::reinterpret_borrow<py::dtype>(dtype), call.out_shape);
    }
    case Library::torch:
      return torch_empty(call);
    case Library::cupy:
      return cupy_empty(call);
    default: {
      DeviceGuard guard(x.device);
      return py::cast(new DeviceArray(x.dtype(), call.out_shape, x.device),
                      py::return_value_policy::take_ownership);
    }
  }
}

// ---- NumPy arrays

// Waits for a stream, also when an exception leaves: until then memory of others may be in use.
class Finish {
 public:
  explicit Finish(cudaStream_t stream) : stream_(stream) {}
  ~Finish() {
    if (!done_ && cudaStreamSynchronize(stream_) != cudaSuccess) cudaGetLastError();  // one is under way
  }
  Finish(const Finish&) = delete;
  Finish& operator=(const Finish&) = delete;

  void now() {
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    done_ = true;
  }
  // Nothing is left that has to be waited for here.
  void unneeded() { done_ = true; }

 private:
  cudaStream_t stream_;
  bool done_ = false;
};

inline void run_on_copies(const Call& call, const Operand& out, int device, const Launch& launch) {
  py::gil_scoped_release released;
  DeviceGuard guard(device);
  const cudaStream_t stream = thread_stream();
  std::vector<Memory> memory;
  std::vector<void*> inputs;
  for (const Operand& in : call.inputs) {
    memory.emplace_back(size_t(in.array.nbytes()), device, stream);
    inputs.push_back(memory.back().data());
  }
  memory.emplace_back(size_t(out.array.nbytes()), device, stream);
  void* result = memory.back().data();

  Finish finish(stream);  // before the memory goes
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& in = call.inputs[i].array;
    if (in.size != 0) copy(inputs[i], in.data, size_t(in.nbytes()), cudaMemcpyHostToDevice, stream);
  }
  launch(result, inputs, device, stream);
  copy(out.array.data, result, size_t(out.array.nbytes()), cudaMemcpyDeviceToHost, stream);
  finish.now();
}

// ---- device arrays

// Runs on the first input's stream, after the work that made the other arrays and before what follows on
// theirs.
inline void run_in_place_of_arrays(const Call& call, const Operand& out, const Launch& launch) {
  py::gil_scoped_release released;
  DeviceGuard guard(first(call).device);
  const cudaStream_t stream = first(call).home;
  bool wait = out.released_any_time;
  std::vector<void*> inputs;
  for (const Operand& in : call.inputs) {
    order(in.home, stream);
    inputs.push_back(in.array.data);
    wait = wait || in.released_any_time;
  }
  order(out.home, stream);
  Finish finish(stream);  // where a home could not be told to wait, too
  launch(out.array.data, inputs, first(call).device, stream);
  for (const Operand& in : call.inputs) order(stream, in.home);
  order(stream, out.home);
  wait ? finish.now() : finish.unneeded();
}

// Computes the op into `out`, or a new array if that is null, and returns it. `launch` is not called for
// a result without elements.
inline py::object run(Call& call, PyObject* out, const Launch& launch) {
  for (size_t i = 1; i < call.inputs.size(); ++i) check_place(call, call.names[i], call.inputs[i]);
  const bool given = out && out != Py_None;
  Operand target = given ? checked_out(call, out) : Operand();
  const int device = first(call).on_host() ? default_device() : first(call).device;
  py::object result = given ? py::reinterpret_borrow<py::object>(out) : new_result(call);
  if (!given) target = operand(call.op, "out", result.ptr());
  if (target.array.size == 0) return result;
  if (first(call).on_host()) {
    run_on_copies(call, target, device, launch);
  } else {
    run_in_place_of_arrays(call, target, launch);
  }
  return result;
}

}  // namespace airllm::cuda
