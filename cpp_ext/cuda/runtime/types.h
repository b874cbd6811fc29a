// What the runtime and the launchers share: dtypes, the description of a product, the count of kernels.
// It includes neither Python nor pybind11, so that nvcc compiles it in a second or two.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace airllm::cuda {

enum class DType : int { f32, f16, bf16, boolean, u8, i32, i64 };

inline size_t size_of(DType dtype) {
  constexpr size_t sizes[] = {4, 2, 2, 1, 1, 4, 8};
  return sizes[int(dtype)];
}

// `batch` products of (m, k) by (k, n), all row-major and packed. A shared b is one matrix for the whole
// batch; a transposed b is (n, k).
struct Product {
  int64_t batch, m, n, k;
  bool b_is_shared;
  bool b_is_transposed = false;
};

// The number of kernels launched by this process, including cuBLAS's products; a graph counts as one.
inline std::atomic<int64_t> kernels_launched{0};

}  // namespace airllm::cuda
