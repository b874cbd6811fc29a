// The CUDA backend's module: tensor_ops_cuda. NumPy arrays are copied to the device and back. Arrays on a
// device (CuPy, PyTorch, DeviceArray, DLPack, __cuda_array_interface__) are used in place.
#include <pybind11/pybind11.h>

#include "bindings/stored_formats.h"
#include "cuda/ops/attention.h"
#include "cuda/ops/decode.h"
#include "cuda/ops/elements.h"
#include "cuda/ops/info.h"
#include "cuda/ops/matmul.h"
#include "cuda/ops/queue.h"
#include "cuda/ops/rows.h"
#include "cuda/ops/stored.h"

#ifndef AIRLLM_GPU_MODULE
#define AIRLLM_GPU_MODULE tensor_ops_cuda
#endif

namespace airllm::cuda {
namespace {

PyMethodDef methods[] = {row<kRmsNorm, rms_norm>(),
                         row<kLayerNorm, layer_norm>(),
                         row<kAddRmsNorm, add_rms_norm>(),
                         row<kSilu, silu>(),
                         row<kGelu, gelu>(),
                         row<kSwiglu, swiglu>(),
                         row<kGeglu, geglu>(),
                         row<kSoftmax, softmax>(),
                         row<kApplyRope, apply_rope>(),
                         row<kMatmul, matmul>(),
                         row<kMatmulVec, matmul_vec>(),
                         row<kLinear, linear>(),
                         row<kAttention, attention>(),
                         row<kAttentionScores, attention_scores>(),
                         row<kWeightedSumRows, weighted_sum_rows>(),
                         row<kEmbedding, embedding>(),
                         row<kDequantize, dequantize>(),
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

PYBIND11_MODULE(AIRLLM_GPU_MODULE, module) {
  module.doc() =
      "The ops of airllm on GPUs of NVIDIA or AMD. Importing it starts nothing; get_cuda_info() says what "
      "runs.";
  arguments::find_numpy();
  static PyObject* const driver_error =
      py::exception<CudaError>(module, "DriverError", PyExc_RuntimeError).ptr();
  py::register_local_exception<CompileError>(module, "CompileError", PyExc_RuntimeError);
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const CudaError& error) {
      PyErr_SetString(error.out_of_memory() ? PyExc_MemoryError : driver_error, error.what());
    }
  });
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
  define_device_array(module);
  define_decoder_graph(module);
  define_queue(module);
  module.def("to_device", &to_device_of_python, py::arg("x"), py::kw_only(), py::arg("device") = py::none(),
             "A copy of a NumPy array, or of a Quantized, on a device: \"cuda:1\", 1, or the one that "
             "computes on NumPy arrays if none is named.");
  module.def("device", &device_line,
             "The device that NumPy arrays are computed on; RuntimeError if there is none.");
  module.def("variants", &variants, "Names of the devices, for select().");
  module.def("use_device", &use_device, py::arg("index"),
             "Compute this thread's NumPy arrays on the device of this index; None: as select() says.");
  module.def("select", &select, py::arg("name"),
             "Compute NumPy arrays on this device from now on; None: on AIRLLM_CUDA_DEVICE or "
             "AIRLLM_ROCM_DEVICE, else the first.");
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
