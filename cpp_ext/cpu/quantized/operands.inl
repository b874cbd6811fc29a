// What the products of a few rows with stored weights share, for all formats.
#ifndef AIRLLM_OPERANDS_INL
#define AIRLLM_OPERANDS_INL
#include "../simd/vectors.inl"
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

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
