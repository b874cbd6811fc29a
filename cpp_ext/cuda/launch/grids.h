// Launches kernels on a stream, and sizes their grids. Part of kernels.cu.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "../../gpu_kernels/gpu/all.h"
#include "launch.h"

namespace airllm::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxBlocks = 2147483647;  // of a grid's first dimension; kernels stride over the rest

struct Grid {
  int64_t blocks;
  int threads;
};

// Launches a kernel on the stream. `arguments` have the order and the sizes of its parameters.
template <class... Parameters, class... Arguments>
cudaError_t run(void (*kernel)(Parameters...), Grid grid, cudaStream_t stream, Arguments... arguments) {
  static_assert(((sizeof(Parameters) == sizeof(Arguments)) && ...), "an argument of another size");
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  const dim3 blocks(static_cast<unsigned>(std::min(grid.blocks, kMaxBlocks)));
  const cudaError_t code = cudaLaunchKernel(kernel, blocks, dim3(static_cast<unsigned>(grid.threads)),
                                            pointers, size_t(0), stream);
  if (code == cudaSuccess) ++kernels_launched;
  return code;
}

// The kernel of `op` for a dtype: op_f32, op_f16 or op_bf16, optionally with a suffix.
#define RUN_OF_DTYPE(dtype, op, suffix, ...)      \
  switch (dtype) {                                \
    case DType::f32:                              \
      return run(op##_f32##suffix, __VA_ARGS__);  \
    case DType::f16:                              \
      return run(op##_f16##suffix, __VA_ARGS__);  \
    case DType::bf16:                             \
      return run(op##_bf16##suffix, __VA_ARGS__); \
    default:                                      \
      break;                                      \
  }                                               \
  return cudaErrorInvalidValue

int64_t packs(int64_t count, DType dtype) {
  const int64_t pack = 16 / int64_t(size_of(dtype));
  return count / pack + (count % pack != 0);
}

int multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  return cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess ? count : 1;
}

// The work-items that run in step: groups are a multiple of it. 64 on some of AMD's GPUs.
int warp() {
#if defined(__HIP_PLATFORM_AMD__)
  int device = 0, size = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&size, cudaDevAttrWarpSize, device) == cudaSuccess;
  return known ? size : 64;
#else
  return 32;
#endif
}

// One work-item per pack of 16 bytes.
Grid grid_of_elements(int64_t count, DType dtype) {
  constexpr int threads = 256;
  return {(packs(count, dtype) + threads - 1) / threads, threads};
}

// One work-group per row. Many rows fill the device with small groups; few rows need as many threads as they
// can use.
Grid grid_of_rows(int64_t rows, int64_t n, DType dtype) {
  const int64_t most = rows >= 4 * int64_t(multiprocessors()) ? 256 : kMaxThreads;
  const int64_t warps = (std::min(packs(n, dtype), most) + warp() - 1) / warp();
  return {rows, int(warps) * warp()};
}

using Size = U64;  // the kernels' type

}  // namespace
}  // namespace airllm::cuda
