// The types of backends. A program includes <airllm/backend/backends.h>.
// `python setup.py write_backends` writes this file by the declarations in airllm/backends/shipped/.
#pragma once

namespace airllm::backend {

// From ADDED on: the backends that BackendRegistry::add() has taken.
enum class BackendType : int {
  CUDA = 0,
  OPENCL = 1,
  CPU = 2,
  MLX = 3,
  WEBGPU = 4,
  PYTHON = 5,
  ADDED = 6,
};

}  // namespace airllm::backend
