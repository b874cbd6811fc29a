// The types of backends. A program includes <airllm/backend/backends.h>.
// `python setup.py write_backends` generates this file from the declarations in airllm/backends/shipped/.
#pragma once

namespace airllm::backend {

// ADDED and above: backends added with BackendRegistry::add().
enum class BackendType : int {
  CUDA = 0,
  OPENCL = 1,
  CPU = 2,
  MLX = 3,
  WEBGPU = 4,
  PYTHON = 5,
  ROCM = 6,
  ADDED = 7,
};

}  // namespace airllm::backend
