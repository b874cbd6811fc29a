// The kernel text that OpenCL, CUDA and HIP share, compiled by nvcc, and a launcher for each op.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "../gpu_kernels/gpu.h"
#include "launch.h"

namespace airllm::cuda {
namespace {

constexpr int kWarp = 32, kMaxThreads = 1024;
constexpr int64_t kMaxBlocks = 2147483647;  // of a grid's first dimension; kernels stride over what is beyond

struct Grid {
  int64_t blocks;
  int threads;
};

// Puts a kernel on the stream. `arguments` are what it takes, in its order and of its sizes.
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

// The kernel of `op` for a dtype: op_f32, op_f16 or op_bf16, or with a suffix.
#define RUN_OF_DTYPE(dtype, op, suffix, ...)      \
  switch (dtype) {                                \
    case DType::f32:                              \
      return run(op##_f32##suffix, __VA_ARGS__);  \
    case DType::f16:                              \
      return run(op##_f16##suffix, __VA_ARGS__);  \
    case DType::bf16:                             \
      return run(op##_bf16##suffix, __VA_ARGS__); \
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

// A work-item per pack of 16 bytes.
Grid grid_of_elements(int64_t count, DType dtype) {
  constexpr int threads = 256;
  return {(packs(count, dtype) + threads - 1) / threads, threads};
}

// A block per row. Many rows fill the device with small blocks; few need all the threads they can use.
Grid grid_of_rows(int64_t rows, int64_t n, DType dtype) {
  const int64_t most = rows >= 4 * int64_t(multiprocessors()) ? 256 : kMaxThreads;
  const int64_t warps = (std::min(packs(n, dtype), most) + kWarp - 1) / kWarp;
  return {rows, int(warps) * kWarp};
}

using Size = U64;  // as the kernels take it

cudaError_t matmul_by_rows(void* out, const void* a, const void* b, DType dtype, const Product& p,
                           cudaStream_t stream) {
  const Grid grid{p.batch * p.m * ((p.n + 31) / 32), 256};
  RUN_OF_DTYPE(dtype, matmul_row, , grid, stream, a, b, out, Size(p.batch), Size(p.m), Size(p.n), Size(p.k));
}

int64_t tiles(const Product& p, int64_t size) {
  return p.batch * ((p.m + size - 1) / size) * ((p.n + size - 1) / size);
}

cudaError_t matmul_by_tiles64(void* out, const void* a, const void* b, DType dtype, const Product& p,
                              cudaStream_t stream) {
  const Grid grid{tiles(p, 64), 256};
  RUN_OF_DTYPE(dtype, matmul, _tile64, grid, stream, a, b, out, Size(p.batch), Size(p.m), Size(p.n),
               Size(p.k));
}

cudaError_t matmul_by_tiles128(void* out, const void* a, const void* b, DType dtype, const Product& p,
                               cudaStream_t stream) {
  const Grid grid{tiles(p, 128), 256};
  RUN_OF_DTYPE(dtype, matmul, _tile128, grid, stream, a, b, out, Size(p.batch), Size(p.m), Size(p.n),
               Size(p.k));
}

std::string listed_archs() {
  std::string text;
  for (const int arch : {__CUDA_ARCH_LIST__}) text += (text.empty() ? "" : ", ") + std::to_string(arch / 10);
  return text;
}

}  // namespace

cudaError_t launch_rms_norm(void* out, const void* x, const void* weight, DType dtype, DType weight_dtype,
                            int64_t rows, int64_t n, float eps, cudaStream_t stream) {
  const Grid grid = grid_of_rows(rows, n, dtype);
  if (weight_dtype == dtype) {
    RUN_OF_DTYPE(dtype, rms_norm, , grid, stream, x, weight, out, Size(rows), Size(n), eps);
  }
  if (weight_dtype != DType::f32) return cudaErrorInvalidValue;
  const auto kernel_f16 = rms_norm_f16_weight_f32;
  const auto kernel_bf16 = rms_norm_bf16_weight_f32;
  return dtype == DType::f16 ? run(kernel_f16, grid, stream, x, weight, out, Size(rows), Size(n), eps)
                             : run(kernel_bf16, grid, stream, x, weight, out, Size(rows), Size(n), eps);
}

cudaError_t launch_silu(void* out, const void* x, DType dtype, int64_t n, cudaStream_t stream) {
  RUN_OF_DTYPE(dtype, silu, , grid_of_elements(n, dtype), stream, x, out, Size(n));
}

cudaError_t launch_gelu(void* out, const void* x, DType dtype, int64_t n, cudaStream_t stream) {
  RUN_OF_DTYPE(dtype, gelu, , grid_of_elements(n, dtype), stream, x, out, Size(n));
}

cudaError_t launch_softmax(void* out, const void* x, DType dtype, int64_t rows, int64_t n,
                           cudaStream_t stream) {
  RUN_OF_DTYPE(dtype, softmax, , grid_of_rows(rows, n, dtype), stream, x, out, Size(rows), Size(n));
}

cudaError_t launch_matmul(void* out, const void* a, const void* b, DType dtype, const Product& product,
                          cudaStream_t stream) {
  Product p = product;
  if (p.b_is_shared) p = {1, p.batch * p.m, p.n, p.k, true};  // the batch is more rows of a
  if (p.m <= 4) return matmul_by_rows(out, a, b, dtype, p, stream);
  const bool fills = tiles(p, 128) >= 2 * int64_t(multiprocessors());  // larger tiles read less
  return fills ? matmul_by_tiles128(out, a, b, dtype, p, stream)
               : matmul_by_tiles64(out, a, b, dtype, p, stream);
}

const char* compiled_archs() {
  static const std::string text = listed_archs();
  return text.c_str();
}

}  // namespace airllm::cuda
