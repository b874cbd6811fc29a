// The CUDA backend's module: tensor_ops_cuda. NumPy arrays are copied to the device and back; arrays that lie
// on a device already (CuPy, PyTorch, DeviceArray, DLPack, __cuda_array_interface__) are used where they lie.
#include <pybind11/pybind11.h>

#include "cuda/info.h"
#include "cuda/ops_attention.h"
#include "cuda/ops_decode.h"
#include "cuda/ops_elements.h"
#include "cuda/ops_matmul.h"
#include "cuda/ops_rows.h"
#include "cuda/ops_stored.h"
#include "stored_formats.h"

namespace airllm::cuda {
namespace {

PyMethodDef methods[] = {
    METHOD(rms_norm,
           "(x, weight, eps=1e-06, *, out=None)\n--\n\n"
           "Scale each row of x to unit root-mean-square, then by weight."),
    METHOD(layer_norm,
           "(x, weight, bias=None, eps=1e-05, *, out=None)\n--\n\n"
           "Scale each row of x to zero mean and unit variance, then by weight, plus bias."),
    METHOD(add_rms_norm,
           "(x, residual, weight, eps=1e-06, *, out=None)\n--\n\n"
           "The sum x + residual, and its rms_norm."),
    METHOD(silu, "(x, *, out=None)\n--\n\nx * sigmoid(x)."),
    METHOD(gelu,
           "(x, approximate='tanh', *, out=None)\n--\n\n"
           "Gaussian error linear unit, in its tanh form or ('none') that with erf."),
    METHOD(swiglu, "(gate, up, *, out=None)\n--\n\nsilu(gate) * up."),
    METHOD(geglu, "(gate, up, approximate='tanh', *, out=None)\n--\n\ngelu(gate) * up."),
    METHOD(softmax,
           "(x, scale=1.0, mask=None, *, out=None)\n--\n\n"
           "Softmax of x * scale + mask over the last axis."),
    METHOD(apply_rope,
           "(x, cos, sin, interleaved=False, *, out=None)\n--\n\n"
           "Rotate pairs of each row of x by the angles of its position."),
    METHOD(matmul, "(a, b, *, out=None)\n--\n\nMatrix product of the last two axes."),
    METHOD(attention,
           "(q, k, v, mask=None, causal=False, scale=None, softcap=None, window=None, *, out=None)\n--\n\n"
           "softmax(q k^T * scale + mask) v for each head."),
    METHOD(attention_scores,
           "(query, keys, scale=1.0, *, out=None)\n--\n\n"
           "Products of one query with each of the keys, times scale."),
    METHOD(weighted_sum_rows,
           "(weights, matrix, *, out=None)\n--\n\n"
           "The sum of the rows of matrix, each times its weight."),
    METHOD(linear,
           "(x, weight, bias=None, *, out=None)\n--\n\n"
           "x @ weight.T + bias, with a weight of floats or a Quantized."),
    METHOD(matmul_vec,
           "(w, x, *, out=None)\n--\n\nThe matrix w, of floats or Quantized, times the vector x."),
    METHOD(embedding, "(ids, table, *, out=None)\n--\n\nThe rows ids of table, of floats or Quantized."),
    METHOD(dequantize, "(q, *, out=None)\n--\n\nThe values of a Quantized, float32."),
    {nullptr, nullptr, 0, nullptr}};

py::object to_device_of_python(const py::object& x, const py::object& device) {
  const Op op{"to_device"};
  if (is_quantized(x.ptr()))
    return py::type::of(x)(to_device_of_python(x.attr("data"), device), x.attr("format"));
  const Operand array = from_host(op, "x", x.ptr(), {kAny, Layout::dense, "a NumPy array or a Quantized"});
  const int target = device.is_none() ? default_device() : parse_device(py::str(device), "to_device: device");
  return py::cast(to_device(array, target));
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
  define_decoder_graph(module);
  module.def(
      "to_device", &to_device_of_python, py::arg("x"), py::kw_only(), py::arg("device") = py::none(),
      "A copy of a NumPy array, or of a Quantized, on a device: \"cuda:1\", 1, or AIRLLM_CUDA_DEVICE's if "
      "none is named.");
  module.def("device", &device_line,
             "The device that NumPy arrays are computed on; RuntimeError if there is none.");
  module.def("variants", &variants, "Names of the devices, for select().");
  module.def("use_device", &use_device, py::arg("index"),
             "Compute this thread's NumPy arrays on the device of this index; None: as select() says.");
  module.def("select", &select, py::arg("name"),
             "Compute NumPy arrays on this device from now on; None: on AIRLLM_CUDA_DEVICE, else the first.");
  module.def("device_infos", &fields_of_devices,
             "Every device, in the fields of airllm.backends.DeviceInfo; RuntimeError if there is none.");
  module.def("get_cuda_info", &get_cuda_info, "What runs here, and if nothing does, why.");
  module.def(
      "stored_formats", [] { return stored_formats(has_kernels); },
      "Of each stored format that the kernels read: ggml's number for it, values and bytes of a block.");
  module.def(
      "calls", [] { return kernels_launched.load(); },
      "Kernels launched by this process so far; a graph is one.");
  module.def("copies", [] { return copies_made.load(); }, "Copies between host and device so far.");
}

}  // namespace airllm::cuda
