// softmax(q k^T * scale + mask) v, block by block of keys (online softmax: Milakov and Gimelshein, 2018; Dao
// et al., 2022).
//
// Each row of a block of keys computes its scores, the running maximum, and the exponentials of the scores
// less the maximum. If the maximum grows by d, earlier sums are scaled by exp(-d). It starts at the lowest
// finite float, so that rows without a key need no special case: their sums stay zero.
#ifndef AIRLLM_ATTENTION_SOFTMAX_INL
#define AIRLLM_ATTENTION_SOFTMAX_INL
#include "../simd/vectors.inl"
#include "attention.h"
#include "rows.inl"

namespace cpu::ISA {
namespace {

// Keys in a block; block sums are added to the total, which keeps digits. Blocks end at multiples of it, so
// that the bits of a row's sums do not depend on the first key of a part.
constexpr int64_t kKeys = 128;
static_assert(kFewRowsPiece % kKeys == 0 && kPanelPiece % kKeys == 0);
constexpr float kHidden = -__builtin_inff();
constexpr float kLowest = -3.40282347e38f;

// c tanh(x / c). Near zero it uses a polynomial (fitted to the relative error: 7e-8 with roundings), since 1
// - e would lose digits.
struct Capped {
  float cap;
  INLINE Vec operator()(Vec x) const {
    const Vec u = x / cap;
    const Vec e = exp2_of_negative((Vec)((Bits)u | 0x80000000u) * (2.f * kLog2E));
    const Vec large = (1.f - e) / (1.f + e);
    const Vec z = u * u;
    Vec p = set(-5.895155573e-3f);
    p = p * z + 2.079596963e-2f;
    p = p * z + -5.378382971e-2f;
    p = p * z + 1.333192412e-1f;
    p = p * z + -3.333329800e-1f;
    const Vec small = u + u * z * p;
    const Vec bounded = z < 0.36f ? small : u < 0.f ? -large : large;
    return bounded * cap;
  }
};

void cap(float* x, int64_t n, float softcap) { map(x, n, Capped{softcap}, x); }

struct Masked {  // a mask of -inf hides a key, whatever its score
  INLINE Vec operator()(Vec score, Vec mask) const { return mask == kHidden ? mask : score + mask; }
};

struct PlusScaled {
  float scale;
  INLINE Vec operator()(Vec x, Vec y) const { return x + scale * y; }
};

template <class T>
void widen(float* out, const void* x, int64_t n) {
  map(out, n, Identity{}, static_cast<const T*>(x));
}
void widen_bool(float* out, const void* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<const uint8_t*>(x)[i] ? 0.f : kHidden;
}
constexpr void (*kWiden[])(float*, const void*, int64_t) = {widen<float>, widen<Float16>, widen<BFloat16>,
                                                            widen_bool};

template <class T>
void narrow(void* out, const float* x, int64_t n, float scale) {
  map(static_cast<T*>(out), n, Scaled{scale}, x);
}
constexpr void (*kNarrow[])(void*, const float*, int64_t, float) = {narrow<float>, narrow<Float16>,
                                                                    narrow<BFloat16>};

INLINE int64_t bytes_of(DType type) { return type == kFloat32 ? 4 : type == kBool ? 1 : 2; }
INLINE int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// The number of keys from `key` to the end of its block, or to the end of the part.
INLINE int64_t keys_of_block(int64_t key, int64_t key_end) {
  return smaller(kKeys - key % kKeys, key_end - key);
}

// Query r / heads of head r % heads.
struct Row {
  int64_t query, head;
  INLINE Row(const Attention& all, int64_t r) : query(r / all.heads), head(r % all.heads) {}
};

INLINE void widen_query(float* to, const Attention& all, const AttentionHead& head, int64_t r) {
  const Row row(all, r);
  const int64_t at = row.head * all.q_head + row.query * all.q_row;
  kWiden[all.q_type](to, head.q + at * bytes_of(all.q_type), all.d);
  map(to, all.d, Scaled{all.scale}, to);
}

// What the mask adds to the scores of row r, for `keys` keys starting at `key`.
INLINE void widen_mask(float* to, const Attention& all, const AttentionHead& head, int64_t r, int64_t key,
                       int64_t keys) {
  const Row row(all, r);
  const int64_t at = row.head * all.mask_head + row.query * all.mask_row + key * all.mask_key;
  kWiden[all.mask_type](to, head.mask + at * bytes_of(all.mask_type), all.mask_key ? keys : 1);
  if (!all.mask_key)
    for (int64_t j = 1; j < keys; ++j) to[j] = to[0];
}

INLINE float exp_of_negative(float x) { return exp2_of_negative(set(x * kLog2E))[0]; }

// The factor for the sums of values if a sink is one more score besides those of the keys.
INLINE float share_beside(float sink, float top, float sum) {
  const float largest = top < sink ? sink : top, shrink = exp_of_negative(top - largest);
  const float all = sum * shrink + exp_of_negative(sink - largest);
  return all == 0.f ? 0.f : shrink / all;
}

// Writes the result of row r, the sums of values divided by the sum of exponentials, or what merge() needs.
INLINE void finish_row(const Attention& all, const AttentionHead& head, const AttentionPart& part, int64_t r,
                       const float* values, float top, float sum) {
  if (part.sums) {
    float* to = part.sums + (r - part.row) * (all.e + 2);
    map(to, all.e, Identity{}, values);
    to[all.e] = top;
    to[all.e + 1] = sum;
    return;
  }
  const Row row(all, r);
  const int64_t at = row.head * all.out_head + row.query * all.out_row;
  const float share = head.sinks   ? share_beside(head.sinks[row.head], top, sum)
                      : sum == 0.f ? 0.f
                                   : 1.f / sum;
  kNarrow[all.q_type](head.out + at * bytes_of(all.q_type), values, all.e, share);
}

void merge(const Attention& all, const AttentionHead& head, int64_t row, int64_t rows, float* sums,
           int64_t parts) {
  const int64_t width = all.e + 2, apart = rows * width;
  for (int64_t r = 0; r < rows; ++r) {
    float* const total = sums + r * width;  // of the first part
    float top = total[all.e], sum = 0.f;
    for (int64_t p = 1; p < parts; ++p) top = top < total[p * apart + all.e] ? total[p * apart + all.e] : top;
    for (int64_t p = 0; p < parts; ++p) {
      const float* const each = total + p * apart;
      const float weight = exp_of_negative(each[all.e] - top);
      sum += weight * each[all.e + 1];
      if (p == 0)
        map(total, all.e, Scaled{weight}, total);
      else
        map(total, all.e, PlusScaled{weight}, total, each);
    }
    finish_row(all, head, {row, rows, 0, 0, nullptr}, row + r, total, top, sum);
  }
}

}  // namespace
}  // namespace cpu::ISA

#endif
