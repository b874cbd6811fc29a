// The CUDA backend's module: tensor_ops_cuda. NumPy arrays are copied to the device and back; arrays that lie
// on a device already (CuPy, PyTorch, DeviceArray, DLPack, __cuda_array_interface__) are used where they lie.
#include <pybind11/pybind11.h>

#include <cstring>

#include "cuda/info.h"
#include "cuda/run.h"

namespace airllm::cuda {
namespace {

// What a failing op raises: MemoryError when the device is full, RuntimeError otherwise, with the op's name.
template <class Body>
PyObject* op_call(const Op& op, const Body& body) noexcept {
  return arguments::python_call([&]() -> PyObject* {
    try {
      return body().release().ptr();
    } catch (const CudaError& error) {
      PyErr_Format(error.out_of_memory() ? PyExc_MemoryError : PyExc_RuntimeError, "%s: %s", op.name,
                   error.what());
    } catch (const py::builtin_exception&) {
      throw;
    } catch (const py::error_already_set&) {
      throw;
    } catch (const std::runtime_error& error) {
      PyErr_Format(PyExc_RuntimeError, "%s: %s", op.name, error.what());
    }
    return nullptr;
  });
}

int64_t rows_of(const arguments::Array& x) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.ndim; ++i) rows *= x.shape[i];
  return rows;
}

void check_has_rows(const Op& op, const Operand& x) {
  if (x.array.ndim == 0) op.wrong_shape("x", x.array, "(... d)");
}

Call call_of(const Op& op, std::vector<const char*> names, PyObject* const* objects, bool may_be_in_place) {
  Call call{op, std::move(names), {}, {}, may_be_in_place};
  for (size_t i = 0; i < call.names.size(); ++i)
    call.inputs.push_back(operand(op, call.names[i], objects[i]));
  const arguments::Array& x = first(call).array;
  call.out_shape.assign(x.shape, x.shape + x.ndim);
  return call;
}

// ---- rms_norm

void check_weight(const Op& op, const Operand& x, const Operand& weight) {
  arguments::check_dtype(op, "weight", weight.array, x.array, true);
  if (weight.array.ndim == 1 && weight.array.axis(1) == x.array.axis(1)) return;
  op.wrong_shape("weight", weight.array, "(d) with d=" + std::to_string(x.array.axis(1)));
}

PyObject* rms_norm(PyObject*, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const Op op{"rms_norm"};
  return op_call(op, [&] {
    PyObject* values[4];
    arguments::place(op, values, {"x", "weight", "eps", "out"}, 3, 2, args, given, keywords);
    const float eps = arguments::number(op, "eps", values[2], 1e-6f);
    Call call = call_of(op, {"x", "weight"}, values, true);
    const Operand &x = call.inputs[0], &weight = call.inputs[1];
    check_has_rows(op, x);
    check_weight(op, x, weight);
    return run(call, values[3], [&](void* out, const std::vector<void*>& in, int, cudaStream_t stream) {
      check(launch_rms_norm(out, in[0], in[1], x.dtype(), weight.dtype(), rows_of(x.array), x.array.axis(1),
                            eps, stream),
            "the launch of rms_norm");
    });
  });
}

// ---- silu, gelu

using LaunchElements = cudaError_t (*)(void*, const void*, DType, int64_t, cudaStream_t);

PyObject* elements(const Op& op, LaunchElements launch, PyObject* const* args, Py_ssize_t given,
                   PyObject* keywords) {
  return op_call(op, [&] {
    PyObject* values[2];
    arguments::place(op, values, {"x", "out"}, 1, 1, args, given, keywords);
    Call call = call_of(op, {"x"}, values, true);
    const Operand& x = call.inputs[0];
    return run(call, values[1], [&](void* out, const std::vector<void*>& in, int, cudaStream_t stream) {
      check(launch(out, in[0], x.dtype(), x.array.size, stream), "the launch of an element-wise kernel");
    });
  });
}

PyObject* silu(PyObject*, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const Op op{"silu"};
  return elements(op, launch_silu, args, given, keywords);
}

PyObject* gelu(PyObject*, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const Op op{"gelu"};
  return elements(op, launch_gelu, args, given, keywords);
}

// ---- softmax

PyObject* softmax(PyObject*, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const Op op{"softmax"};
  return op_call(op, [&] {
    PyObject* values[2];
    arguments::place(op, values, {"x", "out"}, 1, 1, args, given, keywords);
    Call call = call_of(op, {"x"}, values, true);
    const Operand& x = call.inputs[0];
    check_has_rows(op, x);
    return run(call, values[1], [&](void* out, const std::vector<void*>& in, int, cudaStream_t stream) {
      check(launch_softmax(out, in[0], x.dtype(), rows_of(x.array), x.array.axis(1), stream),
            "the launch of softmax");
    });
  });
}

// ---- matmul

std::string batch_text(const arguments::Array& a, int inner) {
  return a.ndim > inner ? ", ...=" + arguments::shape_text(a.ndim - inner, a.shape) : "";
}

void check_product(const Op& op, const arguments::Array& a, const arguments::Array& b) {
  if (a.ndim < 2) op.wrong_shape("a", a, "(... m k)");
  const bool same_batch =
      b.ndim == 2 || (b.ndim == a.ndim && std::equal(a.shape, a.shape + a.ndim - 2, b.shape));
  if (b.ndim < 2 || b.axis(2) != a.axis(1) || !same_batch) {
    const std::string batch = b.ndim > 2 ? batch_text(a, 2) : "";
    op.wrong_shape("b", b, "(... k n) with k=" + std::to_string(a.axis(1)) + batch);
  }
}

Product product_of(const arguments::Array& a, const arguments::Array& b) {
  int64_t batch = 1;
  for (int i = 0; i + 2 < a.ndim; ++i) batch *= a.shape[i];
  return {batch, a.axis(2), b.axis(1), a.axis(1), b.ndim == 2};
}

// A sum over nothing is zero, whatever lies in the result's memory.
void multiply(void* out, const std::vector<void*>& in, DType dtype, const Product& p, Cublas* cublas,
              int device, cudaStream_t stream) {
  if (p.k == 0) {
    const size_t bytes = size_t(p.batch * p.m * p.n) * size_of(dtype);
    check(cudaMemsetAsync(out, 0, bytes, stream), "cudaMemsetAsync");
  } else if (cublas) {
    cublas->matmul(out, in[0], in[1], dtype, p, device, stream);
  } else {
    check(launch_matmul(out, in[0], in[1], dtype, p, stream), "the launch of matmul");
  }
}

PyObject* matmul(PyObject*, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const Op op{"matmul"};
  return op_call(op, [&] {
    PyObject* values[3];
    arguments::place(op, values, {"a", "b", "out"}, 2, 2, args, given, keywords);
    Call call = call_of(op, {"a", "b"}, values, false);
    const arguments::Array &a = call.inputs[0].array, &b = call.inputs[1].array;
    arguments::check_dtype(op, "b", b, a, false);
    check_product(op, a, b);
    call.out_shape.back() = b.axis(1);
    const Product product = product_of(a, b);
    Cublas* cublas = chosen_cublas();
    return run(call, values[2],
               [&](void* out, const std::vector<void*>& in, int device, cudaStream_t stream) {
                 multiply(out, in, call.inputs[0].dtype(), product, cublas, device, stream);
               });
  });
}

template <PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)>
PyMethodDef method(const char* name, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, doc};
}

PyMethodDef methods[] = {
    method<rms_norm>("rms_norm",
                     "rms_norm(x, weight, eps=1e-06, *, out=None)\n--\n\n"
                     "Scale each row of x to unit root-mean-square, then by weight."),
    method<silu>("silu", "silu(x, *, out=None)\n--\n\nx * sigmoid(x)."),
    method<gelu>("gelu", "gelu(x, *, out=None)\n--\n\nGaussian error linear unit in its tanh form."),
    method<softmax>("softmax", "softmax(x, *, out=None)\n--\n\nSoftmax over the last axis."),
    method<matmul>("matmul", "matmul(a, b, *, out=None)\n--\n\nMatrix product of the last two axes."),
    {nullptr, nullptr, 0, nullptr}};

std::unique_ptr<DeviceArray> to_device_of_python(const py::object& x, const py::object& device) {
  static const Op op{"to_device"};
  const arguments::Array array = arguments::array(op, "x", x.ptr());
  const int target = device.is_none() ? default_device() : parse_device(py::str(device), "to_device: device");
  return to_device(array, target);
}

}  // namespace

PYBIND11_MODULE(tensor_ops_cuda, module) {
  module.doc() =
      "The ops of airllm on NVIDIA GPUs. Importing it starts nothing; get_cuda_info() says what runs.";
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const CudaError& error) {
      PyErr_SetString(error.out_of_memory() ? PyExc_MemoryError : PyExc_RuntimeError, error.what());
    }
  });
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
  define_device_array(module);
  module.def("to_device", &to_device_of_python, py::arg("x"), py::kw_only(), py::arg("device") = py::none(),
             "A copy of a NumPy array on a device: \"cuda:1\", 1, or AIRLLM_CUDA_DEVICE's if none is named.");
  module.def("device", &device_line,
             "The device that NumPy arrays are computed on; RuntimeError if there is none.");
  module.def("variants", &variants, "Names of the devices, for select().");
  module.def("select", &select, py::arg("name"),
             "Compute NumPy arrays on this device from now on; None: on AIRLLM_CUDA_DEVICE, else the first.");
  module.def("get_cuda_info", &get_cuda_info, "What runs here, and if nothing does, why.");
  module.def("calls", [] { return kernels_launched.load(); }, "Kernels launched by this process so far.");
  module.def("copies", [] { return copies_made.load(); }, "Copies between host and device so far.");
}

}  // namespace airllm::cuda
