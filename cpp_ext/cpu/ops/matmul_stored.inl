// Products of many rows with stored weights in float32; gemm.h describes each kernel.
#ifndef AIRLLM_MATMUL_STORED_INL
#define AIRLLM_MATMUL_STORED_INL
#include "../quantized/blocks/blocks_256.inl"
#include "../quantized/blocks/blocks_32.inl"
#include "../quantized/blocks/blocks_codebook.inl"
#include "../quantized/gemm/gemm.h"
#include "matmul.inl"

namespace cpu::ISA {
namespace {

template <class T>
void floats_of_dense(float* to, const char* row, int64_t from, int64_t n) {
  map(to, n, Identity{}, reinterpret_cast<const T*>(row) + from);
}

// Values [from, from + n) of a row; both are multiples of 32.
template <class F>
void floats_of(float* to, const char* row, int64_t from, int64_t n) {
  constexpr int kPerBlock = F::kValues / 32;
  for (int64_t c = from / 32; c < (from + n) / 32; ++c, to += 32) {
    const auto* const block = reinterpret_cast<const uint8_t*>(row) + c / kPerBlock * F::kBytes;
    uint8_t codes[32];
    float scale[2] = {}, min[2] = {};
    F::codes(codes, block, c % kPerBlock);
    F::scales(scale, min, block, c % kPerBlock);
    for (int i = 0; i < 32; ++i) {
      const int code = F::kSigned ? static_cast<int8_t>(codes[i] ^ stored::kSignedZero) : codes[i] - F::kZero;
      to[i] = scale[i / F::kUnit] * code + min[i / F::kUnit];
    }
  }
}

using FloatsOf = void(float* to, const char* row, int64_t from, int64_t n);
constexpr FloatsOf* kFloatsOf[kFormats] = {floats_of_dense<float>, floats_of_dense<Float16>,
                                           floats_of_dense<BFloat16>,
#define FORMAT(name, ...) floats_of<stored::name>,
                                           AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
};

template <class T>
void float_product(Format name, void* out, const void* x, const char* weight, const PrefillPart& part,
                   float* workspace) {
  const int64_t stride = part.k / kBlocks[name].values * kBlocks[name].bytes;
  multiply<T>(out, x, {unpack_weight, weight, stride, part.k, kFloatsOf[name]},
              {part.n, part.k, 0, part.m, part.n0, part.n1}, workspace);
}

bool none_by_bytes(Format) { return false; }

constexpr PrefillKernels by_floats() {
  PrefillKernels all = {};
  all.by_bytes = none_by_bytes;
  all.float_product[kFloat32] = float_product<float>;
  all.float_product[kFloat16] = float_product<Float16>;
  all.float_product[kBFloat16] = float_product<BFloat16>;
  return all;
}

}  // namespace
}  // namespace cpu::ISA

#endif
