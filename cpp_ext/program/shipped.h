// The built-in backends of the registry, and their aliases.
// `python setup.py write_backends` generates this file from the declarations in airllm/backends/shipped/.
#pragma once

#include "absent_backend.h"
#include "cpu_backend.h"

namespace airllm::backend {

// clang-format off: a row is a line
constexpr Shipped kShipped[] = {
    {BackendType::CUDA, "cuda", "tensor_ops_cuda", make_absent},
    {BackendType::OPENCL, "opencl", "tensor_ops_opencl", make_absent},
    {BackendType::CPU, "cpu", "tensor_ops_cpp", make<CpuBackend>},
    {BackendType::MLX, "mlx", "tensor_ops_mlx", make_absent},
    {BackendType::WEBGPU, "webgpu", "tensor_ops_webgpu", make_absent},
    {BackendType::PYTHON, "python", "NumPy", make_absent},
    {BackendType::ROCM, "rocm", "tensor_ops_rocm", make_absent},
};

constexpr Alias kAliases[] = {
    {"cpp", "cpu"},
    {"openmp", "cpu"},
    {"metal", "mlx"},
    {"mps", "mlx"},
    {"numpy", "python"},
};
// clang-format on

}  // namespace airllm::backend
