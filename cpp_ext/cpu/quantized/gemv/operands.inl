// What the products of a few rows with stored weights share, for all formats.
#ifndef AIRLLM_OPERANDS_INL
#define AIRLLM_OPERANDS_INL
#include "../../simd/vectors.inl"
#include "gemv.h"

namespace cpu::ISA {
namespace {
namespace stored {

constexpr int64_t kTile = 16;  // results of a stream that are buffered in float32

// Rows of weights at a time. `kBeside`, the number for several rows of x, was measured on AVX-512.
template <int M, int kBeside = 2>
constexpr int kWeightRows = M == 1          ? 4
                            : VECTORS == 32 ? kBeside
                                            : 1;

// The addresses of the operands of dots().
template <int R, int M>
struct Operands {
  const char* w[R];
  const char* x[M];
  int64_t k;
};

struct AddBias {
  INLINE Vec operator()(Vec sum, Vec bias) const { return sum + bias; }
};

template <class T>
INLINE void store_results(char* out, int64_t n, const float* sums, const float* bias) {
  if (bias)
    map(reinterpret_cast<T*>(out), n, AddBias{}, sums, bias);
  else
    map(reinterpret_cast<T*>(out), n, Identity{}, sums);
}

inline void store_results(DType dtype, char* out, int64_t at, int64_t n, const float* sums,
                          const float* bias) {
  if (dtype == kFloat32) return store_results<float>(out + 4 * at, n, sums, bias);
  if (dtype == kFloat16) return store_results<Float16>(out + 2 * at, n, sums, bias);
  store_results<BFloat16>(out + 2 * at, n, sums, bias);
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
