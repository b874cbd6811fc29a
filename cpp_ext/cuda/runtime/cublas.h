// cuBLAS, loaded at run time if it is found: the module is not linked to it and does not need it.
//
// Only three of its functions are used. They are declared below, so that the build machine does not need its
// header. The oldest version is 12, which introduced the 64-bit entry points.
#pragma once

#include <library_types.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "libraries.h"
#include "stream.h"
#include "types.h"

namespace airllm::cuda {

class Cublas {
 public:
  // `folders`: where to look besides the process itself and the system's loader path, e.g.
  // site-packages/nvidia/cu13/lib; in order of preference. PyTorch or CuPy may have loaded one.
  explicit Cublas(const std::vector<std::string>& folders) {
    const auto takes = [this](void* library, const std::string& name) {
      const bool whole = find(library);
      if (!whole) why_not_ = name + " is older than cuBLAS 12 (pip install -U nvidia-cublas)";
      return whole;
    };
    library_ = load_library({"libcublas.so.13", "libcublas.so.12"}, folders, takes);
    if (!library_ && why_not_.empty())
      why_not_ = "no libcublas.so.13 or .12 was found (pip install nvidia-cublas)";
  }

  bool is_loaded() const { return library_ != nullptr; }
  const std::string& why_not() const { return why_not_; }

  // "cublas 13.1 from /.../libcublas.so.13"
  std::string description() const {
    int major = 0, minor = 0;
    get_property_(0, &major);
    get_property_(1, &minor);
    Dl_info info{};
    const bool placed = dladdr(reinterpret_cast<void*>(get_property_), &info) != 0 && info.dli_fname;
    return "cublas " + std::to_string(major) + "." + std::to_string(minor) + " from " +
           (placed ? info.dli_fname : "the loader");
  }

  // Multiplies on `stream` of the current device, which must be `device`.
  void matmul(void* out, const void* a, const void* b, DType dtype, const Product& product, int device,
              cudaStream_t stream) {
    if (product.b_is_shared || product.batch == 1) {
      const int64_t rows = product.batch * product.m;  // the batch becomes more rows of a
      return gemm(out, a, b, dtype, {1, rows, product.n, product.k, true, product.b_is_transposed}, device,
                  stream);
    }
    for (int64_t first = 0; first < product.batch; first += kBatchLimit) {
      Product part = product;
      part.batch = std::min(kBatchLimit, product.batch - first);
      const int64_t size = int64_t(size_of(dtype));
      gemm(static_cast<char*>(out) + first * product.m * product.n * size,
           static_cast<const char*>(a) + first * product.m * product.k * size,
           static_cast<const char*>(b) + first * product.k * product.n * size, dtype, part, device, stream);
    }
  }

 private:
  using Handle = void*;
  static constexpr int64_t kBatchLimit = 65535;  // of a grid's third dimension
  static constexpr int kNoTranspose = 0, kTranspose = 1, kCompute32F = 68, kDefaultAlgorithm = -1;
  static constexpr int kMathMode = 16;  // no TF32 for float32, no reduced-precision sums of float16

  bool find(void* library) {
    return find_function(library, "cublasCreate_v2", create_) &&
           find_function(library, "cublasSetStream_v2", set_stream_) &&
           find_function(library, "cublasSetMathMode", set_math_mode_) &&
           find_function(library, "cublasGemmEx_64", gemm_) &&
           find_function(library, "cublasGemmStridedBatchedEx_64", batched_) &&
           find_function(library, "cublasGetProperty", get_property_) &&
           find_function(library, "cublasGetStatusString", status_string_);
  }

  void check(int status, const char* call) const {
    if (status != 0) throw std::runtime_error(std::string(call) + " failed: " + status_string_(status));
  }

  // One handle per device. Its stream is set before every call, under the lock of matmul's caller.
  Handle handle(int device) {
    auto& found = handles_[device];
    if (!found) {
      Handle created = nullptr;
      check(create_(&created), "cublasCreate");
      check(set_math_mode_(created, kMathMode), "cublasSetMathMode");
      found = created;
    }
    return found;
  }

  static cudaDataType type(DType dtype) {
    return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
  }

  // cuBLAS is column-major, where out = a b is out' = b' a': the same memory with the operands swapped.
  void gemm(void* out, const void* a, const void* b, DType dtype, const Product& p, int device,
            cudaStream_t stream) {
    const float one = 1.0f, zero = 0.0f;
    const cudaDataType t = type(dtype);
    const int b_op = p.b_is_transposed ? kTranspose : kNoTranspose;
    const int64_t b_row = p.b_is_transposed ? p.k : p.n;
    std::lock_guard<std::mutex> lock(mutex_);
    Handle h = handle(device);
    check(set_stream_(h, stream), "cublasSetStream");
    if (p.batch == 1) {
      check(gemm_(h, b_op, kNoTranspose, p.n, p.m, p.k, &one, b, t, b_row, a, t, p.k, &zero, out, t, p.n,
                  kCompute32F, kDefaultAlgorithm),
            "cublasGemmEx");
    } else {
      check(batched_(h, b_op, kNoTranspose, p.n, p.m, p.k, &one, b, t, b_row, p.k * p.n, a, t, p.k, p.m * p.k,
                     &zero, out, t, p.n, p.m * p.n, p.batch, kCompute32F, kDefaultAlgorithm),
            "cublasGemmStridedBatchedEx");
    }
    ++kernels_launched;
  }

  void* library_ = nullptr;
  std::string why_not_;
  std::mutex mutex_;
  std::map<int, Handle> handles_;

  int (*create_)(Handle*) = nullptr;
  int (*set_stream_)(Handle, cudaStream_t) = nullptr;
  int (*set_math_mode_)(Handle, int) = nullptr;
  int (*gemm_)(Handle, int, int, int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
               cudaDataType, int64_t lda, const void* b, cudaDataType, int64_t ldb, const void* beta, void* c,
               cudaDataType, int64_t ldc, int compute, int algorithm) = nullptr;
  int (*batched_)(Handle, int, int, int64_t m, int64_t n, int64_t k, const void* alpha, const void* a,
                  cudaDataType, int64_t lda, long long stride_a, const void* b, cudaDataType, int64_t ldb,
                  long long stride_b, const void* beta, void* c, cudaDataType, int64_t ldc,
                  long long stride_c, int64_t batch, int compute, int algorithm) = nullptr;
  int (*get_property_)(int, int*) = nullptr;
  const char* (*status_string_)(int) = nullptr;
};

}  // namespace airllm::cuda
