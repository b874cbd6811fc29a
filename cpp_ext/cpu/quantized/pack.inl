// Quantizers that search for scales: those of blocks of 256 values, and of the codes of iq4_nl. They give the
// bytes of airllm/formats/pack_256.py and blocks_32.py, which define them.
#ifndef AIRLLM_PACK_INL
#define AIRLLM_PACK_INL
#include "../simd/block_bytes.inl"
#include "formats.h"
#include "scale_search.inl"

namespace cpu::ISA {
namespace {
namespace stored {

INLINE void store_half(char* p, float v) {
  const float lanes[LANES] = {v};  // set() would lose the sign of a zero
  Float16 half;
  store(&half, load(lanes), 1);
  __builtin_memcpy(p, &half, 2);
}

// Stores the scale of a block x. It is NaN if a number is not finite, which the search would pass over.
template <int kValues>
INLINE void store_scale(char* p, float scale, const float* x) {
  bool finite = scale == scale;
  for (int i = 0; i < kValues; ++i) finite &= x[i] - x[i] == 0.f;
  store_half(p, finite ? scale : __builtin_nanf(""));
}

INLINE int nearest(float v) {
  const float shifted = v + kRound;
  int32_t bits;
  __builtin_memcpy(&bits, &shifted, 4);
  return (bits & 0x7fffff) - 0x400000;
}
INLINE int clip(int v, int least, int most) { return v < least ? least : v > most ? most : v; }

// Fields of `kBits` bits of n codes, from bit `from` of each: every `run` bytes hold run codes in their
// lowest bits, then run more in the next ones, and so on.
template <int kBits>
INLINE void join_fields(char* to, const uint8_t* codes, int n, int run, int from = 0) {
  constexpr int kFields = 8 / kBits, kMask = (1 << kBits) - 1;
  for (int start = 0; start < n; start += kFields * run)
    for (int i = 0; i < run; ++i) {
      int byte = 0;
      for (int f = 0; f < kFields; ++f) byte |= (codes[start + f * run + i] >> from & kMask) << f * kBits;
      *to++ = static_cast<char>(byte);
    }
}

// kCount sub-blocks of kSize values, each in a lane.
template <int kSize, int kCount = 256 / kSize>
struct Columns {
  static constexpr int kGroups = (kCount + LANES - 1) / LANES, kLanes = kGroups * LANES;
  Vec x[kGroups][kSize], q[kGroups][kSize];
  float scale[kLanes], start[kLanes];  // as found
  uint8_t codes[kLanes * kSize];

  INLINE explicit Columns(const float* in, int count = kCount) {
    for (int i = 0; i < kSize; ++i) {
      float lanes[kLanes] = {};
      for (int j = 0; j < count; ++j) lanes[j] = in[j * kSize + i];
      for (int g = 0; g < kGroups; ++g) x[g][i] = load(lanes + g * LANES);
    }
  }

  // q of x = scale q - offset by the scales as stored. Where a scale is 0, q stays.
  INLINE void round_again(const float* by, const float* offset, int least, int most) {
    for (int g = 0; g < kGroups; ++g) {
      const Vec scales = load(by + g * LANES), offsets = load(offset + g * LANES);
      for (int i = 0; i < kSize; ++i)
        q[g][i] = scales == 0.f ? q[g][i] : nearest_in((x[g][i] + offsets) / scales, least, most);
    }
  }

  INLINE void store_codes(int zero) {
    for (int g = 0; g < kGroups; ++g)
      for (int i = 0; i < kSize; ++i) store_codes(g, i, __builtin_convertvector(q[g][i], Int) + zero);
  }
  INLINE void store_codes(int g, int i, Int code) {
    for (int j = 0; j < LANES; ++j) codes[(g * LANES + j) * kSize + i] = static_cast<uint8_t>(code[j]);
  }
};

// ---- with an offset: q2_k, q4_k, q5_k

// The step of which the largest scale is `most`; the scales as integers.
template <int kCount>
INLINE float step_of(uint8_t* integers, const float* scales, float sign, int most) {
  float largest = 0.f;
  for (int j = 0; j < kCount; ++j) largest = sign * scales[j] > largest ? sign * scales[j] : largest;
  const float inverse = largest > 0.f ? static_cast<float>(most) / largest : 0.f;
  for (int j = 0; j < kCount; ++j) {
    const int byte = nearest(rounded(inverse * (sign * scales[j]))) & 255;
    integers[j] = static_cast<uint8_t>(byte < most ? byte : most);
  }
  return largest / static_cast<float>(most);
}

template <int kSize>
struct PackedWithOffsets : Columns<kSize> {
  using Of = Columns<kSize>;
  static constexpr int kCount = 256 / kSize;
  char halves[4];
  uint8_t scales[kCount], offsets[kCount];

  INLINE PackedWithOffsets(const float* in, int most, int most_scale, float first, int steps) : Of(in) {
    for (int g = 0; g < Of::kGroups; ++g) {
      Vec weight[kSize];
      weigh(weight, Of::x[g]);
      const Weighted<kSize> of(Of::x[g], weight);
      const ScaleAndStart found = search_with_start(Of::q[g], of, most, first, steps);
      store(Of::scale + g * LANES, found.scale);
      store(Of::start + g * LANES, found.start);
    }
    store_scale<256>(halves, step_of<kCount>(scales, Of::scale, 1.f, most_scale), in);
    store_half(halves + 2, step_of<kCount>(offsets, Of::start, -1.f, most_scale));
    float by[Of::kLanes] = {}, offset[Of::kLanes] = {};
    for (int j = 0; j < kCount; ++j) {
      by[j] = half_at(halves) * scales[j];
      offset[j] = rounded(half_at(halves + 2) * offsets[j]);
    }
    Of::round_again(by, offset, 0, most);
    Of::store_codes(0);
  }

  // The magnitude; with that of the whole sub-block added if it has 32 values.
  static INLINE void weigh(Vec* weight, const Vec* x) {
    Vec squares = {};
    for (int i = 0; i < kSize; ++i) squares += rounded(x[i] * x[i]);
    if (kSize == 16) squares = Vec{};
    squares = squares / 32.f;
    for (int j = 0; j < LANES; ++j) squares[j] = __builtin_sqrtf(squares[j]);
    for (int i = 0; i < kSize; ++i) weight[i] = magnitude(x[i]) + squares;
  }

  // Eight scales and offsets of six bits: those of the last four are split.
  INLINE void store_six_bits(char* p) const {
    for (int j = 0; j < 4; ++j) {
      p[j] = static_cast<char>(scales[j] | scales[4 + j] >> 4 << 6);
      p[4 + j] = static_cast<char>(offsets[j] | offsets[4 + j] >> 4 << 6);
      p[8 + j] = static_cast<char>((scales[4 + j] & 15) | (offsets[4 + j] & 15) << 4);
    }
  }
};

NOINLINE void pack_q2_k(char* p, const float* x) {
  const PackedWithOffsets<16> packed(x, 3, 15, -0.5f, 15);
  for (int j = 0; j < 16; ++j) p[j] = static_cast<char>(packed.scales[j] | packed.offsets[j] << 4);
  join_fields<2>(p + 16, packed.codes, 256, 32);
  __builtin_memcpy(p + 80, packed.halves, 4);
}

NOINLINE void pack_q4_k(char* p, const float* x) {
  const PackedWithOffsets<32> packed(x, 15, 63, -1.f, 20);
  __builtin_memcpy(p, packed.halves, 4);
  packed.store_six_bits(p + 4);
  join_fields<4>(p + 16, packed.codes, 256, 32);
}

NOINLINE void pack_q5_k(char* p, const float* x) {
  const PackedWithOffsets<32> packed(x, 31, 63, -0.5f, 15);
  __builtin_memcpy(p, packed.halves, 4);
  packed.store_six_bits(p + 4);
  join_fields<1>(p + 16, packed.codes, 256, 32, 4);
  join_fields<4>(p + 48, packed.codes, 256, 32);
}

// ---- without: q3_k, q6_k, iq4_xs

// The scale of largest magnitude, the first of several; NaN if there is one.
template <int kCount>
INLINE float largest_scale(const float* scales) {
  float largest = scales[0];
  for (int j = 1; j < kCount && largest == largest; ++j)
    if (__builtin_fabsf(scales[j]) > __builtin_fabsf(largest) || scales[j] != scales[j]) largest = scales[j];
  return largest;
}

// Scales as integers, of which the one of largest magnitude is -most.
struct SignedScales {
  float step;
  bool zero;  // no scale is larger than `least`
  int integers[16];

  INLINE SignedScales(const float* scales, int most, float least) {
    const float largest = largest_scale<16>(scales);
    zero = __builtin_fabsf(largest) <= least;
    const float inverse = zero ? 0.f : static_cast<float>(-most) / largest;
    step = zero ? 0.f : 1.f / inverse;
    for (int j = 0; j < 16; ++j) integers[j] = clip(nearest(rounded(inverse * scales[j])), -most, most - 1);
  }
};

// Codes by the scales as stored.
INLINE void round_by_scales(Columns<16>& packed, const SignedScales& scales, const char* half, int most) {
  constexpr int kLanes = Columns<16>::kLanes;
  float by[kLanes] = {};
  const float none[kLanes] = {};
  for (int j = 0; j < 16; ++j) by[j] = half_at(half) * static_cast<float>(scales.integers[j]);
  packed.round_again(by, none, -most, most - 1);
  packed.store_codes(most);
}

NOINLINE void pack_q3_k(char* p, const float* x) {
  Columns<16> packed(x);
  for (int g = 0; g < packed.kGroups; ++g)
    store(packed.scale + g * LANES, search_one_by_one<16>(packed.q[g], packed.x[g], 4));
  const SignedScales scales(packed.scale, 32, 0.f);
  store_scale<256>(p + 108, scales.step, x);
  round_by_scales(packed, scales, p + 108, 4);
  uint8_t codes[16];
  for (int j = 0; j < 16; ++j) codes[j] = static_cast<uint8_t>(scales.zero ? 0 : scales.integers[j] + 32);
  join_fields<1>(p, packed.codes, 256, 32, 2);
  join_fields<2>(p + 32, packed.codes, 256, 32);
  join_fields<4>(p + 96, codes, 16, 8);
  join_fields<2>(p + 104, codes, 16, 4, 4);
}

NOINLINE void pack_q6_k(char* p, const float* x) {
  Columns<16> packed(x);
  for (int g = 0; g < packed.kGroups; ++g)
    store(packed.scale + g * LANES, search_symmetric<16>(packed.q[g], packed.x[g], 32));
  const SignedScales scales(packed.scale, 128, kLeastMagnitude);
  store_scale<256>(p + 208, scales.step, x);
  round_by_scales(packed, scales, p + 208, 32);
  if (scales.zero)
    for (uint8_t& code : packed.codes) code = 0;
  join_fields<4>(p, packed.codes, 256, 64);
  join_fields<2>(p + 128, packed.codes, 256, 32, 4);
  for (int j = 0; j < 16; ++j) p[192 + j] = static_cast<char>(scales.integers[j]);
}

// ---- the codes of iq4_nl

constexpr float kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// The nearest level, by counting down from the last one: that of a NaN.
INLINE Int code_of_level(Vec v) {
  Int code = Int{} + 15;
  for (int j = 0; j < 15; ++j) code += v < (kLevels[j] + kLevels[j + 1]) / 2;
  return code;
}
INLINE Vec nearest_level(Vec v) {
  Int level = Int{} + static_cast<int>(kLevels[15]);
  for (int j = 0; j < 15; ++j)
    level += (v < (kLevels[j] + kLevels[j + 1]) / 2) & static_cast<int>(kLevels[j] - kLevels[j + 1]);
  return to_float(level);
}

INLINE Vec search_levels(Vec* q, const Vec* x) {
  const Vec largest = largest_of<32>(x);
  Vec weight[32];
  for (int i = 0; i < 32; ++i) weight[i] = rounded(x[i] * x[i]);
  const Vec scale = search_scale<32>(
      q, x, 16,
      [&](int t) __attribute__((always_inline)) {
        return t ? set(static_cast<float>(t - 8) + kLevels[0]) / largest : 1.f / (-largest / kLevels[0]);
      },
      [](Vec scaled) __attribute__((always_inline)) { return nearest_level(scaled); },
      [&](int i, Vec by, Vec& xq, Vec& qq) __attribute__((always_inline)) {
        xq += rounded(weight[i] * by * x[i]);
        qq += rounded(weight[i] * by * by);
      });
  return unless_zero(largest, scale, Vec{});
}

template <int kCount>
struct PackedLevels : Columns<32, kCount> {
  using Of = Columns<32, kCount>;
  INLINE PackedLevels(const float* in, int count) : Of(in, count) {
    for (int g = 0; g < Of::kGroups; ++g) store(Of::scale + g * LANES, search_levels(Of::q[g], Of::x[g]));
  }
  INLINE void store_nearest(const float* by) {
    for (int g = 0; g < Of::kGroups; ++g) {
      const Vec scales = load(by + g * LANES), inverse = scales == 0.f ? Vec{} : 1.f / scales;
      for (int i = 0; i < 32; ++i) Of::store_codes(g, i, code_of_level(inverse * Of::x[g][i]));
    }
  }
};

NOINLINE void pack_iq4_xs(char* p, const float* x) {
  PackedLevels<8> packed(x, 8);
  const float step = -largest_scale<8>(packed.scale) / 32.f, inverse = step == 0.f ? 0.f : 1.f / step;
  uint8_t codes[8];
  float by[packed.kLanes] = {};
  for (int j = 0; j < 8; ++j) {
    const int scale = clip(nearest(rounded(inverse * packed.scale[j])), -32, 31);
    codes[j] = static_cast<uint8_t>(scale + 32);
    by[j] = step * static_cast<float>(scale);
  }
  packed.store_nearest(by);
  store_scale<256>(p, step, x);
  join_fields<2>(p + 2, codes, 8, 1, 4);
  join_fields<4>(p + 4, codes, 8, 1);
  join_fields<4>(p + 8, packed.codes, 256, 16);
}

// Up to LANES blocks.
NOINLINE void pack_iq4_nl(char* p, const float* x, int count) {
  PackedLevels<LANES> packed(x, count);
  packed.store_nearest(packed.scale);
  for (int j = 0; j < count; ++j, p += 18) {
    store_scale<32>(p, packed.scale[j], x + 32 * j);
    join_fields<4>(p + 2, packed.codes + 32 * j, 32, 16);
  }
}

// ---- mxfp4

// The largest magnitude, rounded down to a power of two, becomes 4.
INLINE int exponent_of(const float* x) {
  float largest = 0.f;
  for (int i = 0; i < 32; ++i) {
    const float size = __builtin_fabsf(x[i]);
    largest = size > largest ? size : largest;
  }
  if (largest == 0.f) return 0;
  return (static_cast<int>(__builtin_floorf(static_cast<float>(__builtin_log2(largest)))) + 125) & 255;
}

NOINLINE void pack_mxfp4(char* p, const float* in) {
  constexpr int8_t kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  constexpr float kLargest = 3.40282347e38f;
  float x[32];
  for (int i = 0; i < 32; ++i) x[i] = in[i] > kLargest ? kLargest : in[i] < -kLargest ? -kLargest : in[i];
  const int exponent = exponent_of(x);
  const int32_t bits = exponent < 2 ? (exponent + 1) << 21 : (exponent - 1) << 23;
  float scale;
  __builtin_memcpy(&scale, &bits, 4);
  uint8_t codes[32];
  for (int at = 0; at < 32; at += LANES) {
    const Vec v = load(x + at);
    Vec least = magnitude(v);
    Int code = {};
    for (int j = 1; j < 16; ++j) {
      const Vec error = magnitude(set(kValues[j] * scale) - v);
      code = error < least ? Int{} + j : code;
      least = error < least ? error : least;
    }
    for (int j = 0; j < LANES; ++j) codes[at + j] = static_cast<uint8_t>(code[j]);
  }
  p[0] = static_cast<char>(exponent);
  join_fields<4>(p + 1, codes, 32, 16);
}

// The quantizer of a block in a format, or null.
template <Format>
constexpr void (*kPackBlock)(char*, const float*) = nullptr;
template <>
constexpr void (*kPackBlock<kQ2_K>)(char*, const float*) = pack_q2_k;
template <>
constexpr void (*kPackBlock<kQ3_K>)(char*, const float*) = pack_q3_k;
template <>
constexpr void (*kPackBlock<kQ4_K>)(char*, const float*) = pack_q4_k;
template <>
constexpr void (*kPackBlock<kQ5_K>)(char*, const float*) = pack_q5_k;
template <>
constexpr void (*kPackBlock<kQ6_K>)(char*, const float*) = pack_q6_k;
template <>
constexpr void (*kPackBlock<kIQ4_XS>)(char*, const float*) = pack_iq4_xs;
template <>
constexpr void (*kPackBlock<kMXFP4>)(char*, const float*) = pack_mxfp4;

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
