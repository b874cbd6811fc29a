// Products with blocks of 256 signed codes (blocks_codes.inl). x is packed as for the other blocks of 256, in
// the order in which the format's reader returns the codes. The products of a block are summed as integers.
#ifndef AIRLLM_GEMV_CODES_INL
#define AIRLLM_GEMV_CODES_INL
#include "blocks_codes.inl"
#include "gemv_256.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// The scales of a block's sub-blocks.
template <class F>
INLINE SubBlocks<F::kUnit> sub_blocks_of_codes(const char* w) {
  int16_t scales[256 / F::kUnit];
  for (int j = 0; j < 256 / F::kUnit; ++j)
    scales[j] = static_cast<int16_t>(F::sub_scale(reinterpret_cast<const uint8_t*>(w), j));
  SubBlocks<F::kUnit> sub = {};
  for (int i = 0; i < sub.kWords; ++i) sub.scales[i] = load_words(scales + 8 * i);
  return sub;
}

#ifdef PAIRS_U8_I8
INLINE Int add_scaled_signed(Int sum, Bytes w, Bytes x, Shorts scales) {
  const Shorts pairs = (Shorts)PAIRS_I8_I8(w, x);
#ifdef ADD_SUMS_OF_PAIRS
  return ADD_SUMS_OF_PAIRS(sum, pairs, scales);
#else
  return sum + SUMS_OF_PAIRS(pairs, scales);
#endif
}
#else
INLINE Int add_scaled_signed(Int sum, Bytes w, Bytes x, Int scales) {
  static_assert(kSignedZero == 0, "else dot_signed() adds more than the products");
  return sum + dot_signed(Int{}, w, x) * scales;
}
#endif

template <class F, int M>
INLINE void add_block_of_codes(Vec (&to)[M], const char* w, const Group256* const (&x)[M]) {
  const SubBlocks<F::kUnit> sub = sub_blocks_of_codes<F>(w);
  const typename F::Reader reader(w);
  Int whole[M] = {};
  for (int v = 0; v < 256 / kStep / F::kFields; ++v) {
    const auto scales = scales_of_vector<F>(sub, v);
    for (int vector = v * F::kFields; vector < (v + 1) * F::kFields; ++vector) {
      const Bytes codes = reader.vector(vector);
      const auto of_vector = scales_of_field<F>(scales, vector);
      for (int m = 0; m < M; ++m)
        whole[m] = add_scaled_signed(whole[m], codes, load_bytes(x[m]->values + vector * kStep), of_vector);
    }
  }
  const float step = F::step(reinterpret_cast<const uint8_t*>(w));
  for (int m = 0; m < M; ++m) to[m] += to_float(whole[m]) * (step * x[m]->scale);
}

template <class F>
struct BlocksOfCodes {
  template <int M>
  static constexpr int kRows = kWeightRows<M>;

  static int64_t packed_bytes(int64_t k) { return Blocks256<F>::packed_bytes(k); }
  static bool pack(char* to, const float* x, int64_t k, float* error) {
    return Blocks256<F>::pack(to, x, k, error);
  }

  template <int R, int M>
  static INLINE void dots(float (&out)[R][M], const Operands<R, M>& all) {
    Vec sums[R][M] = {};
    const Group256* x[M];
    for (int m = 0; m < M; ++m) x[m] = reinterpret_cast<const Group256*>(all.x[m]);
    for (int64_t b = 0; b < all.k / 256; ++b) {
#pragma GCC unroll 4  // a loop over the rows would keep their sums in memory
      for (int r = 0; r < R; ++r) add_block_of_codes<F, M>(sums[r], all.w[r] + b * F::kBytes, x);
      for (int m = 0; m < M; ++m) ++x[m];
    }
    sums_across(out, sums);
  }
};

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
