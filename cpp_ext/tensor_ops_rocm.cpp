// The ROCm backend's module: that of CUDA with HIP's runtime, whose names cuda/hip/ translates.
#define AIRLLM_GPU_MODULE tensor_ops_rocm
#include "tensor_ops_cuda.cpp"
