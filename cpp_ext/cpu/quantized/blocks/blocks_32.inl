// The formats of blocks of 32 values: a scale, in some formats a float16 offset after it, and a code for each
// value. The scale is a float16, in mxfp4 a power of two. w = scale (code - kZero), or scale code + offset
// (kOffset). airllm/formats/ says what each byte means.
//
// A format is a struct that overrides what differs from BlockOf32:
//   kLow, kFifth  the places of its bytes or nibbles, and of fifth bits, if it has them
//   kLargest      the largest code
//   kBeside       see kWeightRows
// It unpacks in two ways, since blocks are read in two shapes:
//   unpack(p)                    a group of LANES / 4 blocks, as two vectors: for few rows of x, as stored
//   codes(to, block, chunk), scales(scale, offset, block, chunk)   32 values: for panels, with many rows of x
#ifndef AIRLLM_BLOCKS_32_INL
#define AIRLLM_BLOCKS_32_INL
#include "../../simd/block_bytes.inl"
#include "../formats.h"

namespace cpu::ISA {
namespace {
namespace stored {

struct Pair {  // values 0-15 and 16-31 of a group's blocks
  Bytes first, second;
};

// ---- a group of blocks

template <int kStride, class Group>
INLINE Pair nibbles(Group p) {
  const Bytes both = pieces<kStride>(p);
  return {both & (int8_t)15, field(both, 4, 15)};
}

// 16 in each byte whose bit, of 32 for each block, is set.
template <int kStride, class Group>
INLINE Pair fifth_bits(Group p) {
  const Bytes place = (Bytes)(Longs{} + 0x8040201008040201u);
  const Bytes first = eights<kStride>(p) & place, second = eights<kStride>(p + 2) & place;
  return {(Bytes)(first != 0) & (int8_t)16, (Bytes)(second != 0) & (int8_t)16};
}

// ---- a block

// GCC splits loops over bytes that may overlap, so 16 bytes are a vector here.
typedef uint8_t Codes __attribute__((vector_size(16)));
typedef uint8_t CodesInMemory __attribute__((vector_size(16), aligned(1), may_alias));
INLINE Codes load_codes(const uint8_t* p) { return *reinterpret_cast<const CodesInMemory*>(p); }
INLINE void store_codes(uint8_t* p, Codes v) { *reinterpret_cast<CodesInMemory*>(p) = v; }

// The fifth bits of 32 values, from a word. Each byte of it is repeated for eight values and each value keeps
// one bit of it; an addition makes that the highest bit.
INLINE void add_fifth_bits(uint8_t* to, const uint8_t* bits) {
  constexpr uint64_t kEach = 0x0101010101010101u;
  for (int i = 0; i < 4; ++i) {
    const uint64_t bit = bits[i] * kEach & 0x8040201008040201u;
    const uint64_t highest = ((bit & 0x7f * kEach) + 0x7f * kEach) | bit;
    const uint64_t fifth = highest >> 3 & 0x10 * kEach;
    uint64_t eight;
    __builtin_memcpy(&eight, to + 8 * i, 8);
    eight |= fifth;
    __builtin_memcpy(to + 8 * i, &eight, 8);
  }
}

// ---- what the formats share

template <class F, Format kFormatOf>
struct BlockOf32 {
  static constexpr Format kFormat = kFormatOf;
  static constexpr int kValues = 32, kBytes = kBlocks[kFormat].bytes, kUnit = 32;
  static constexpr int kFifth = 0, kZero = 0, kBeside = 2;
  static constexpr bool kSigned = false, kOffset = false, kHasLevels = false;
  static_assert(kBlocks[kFormat].values == kValues);

  static INLINE float scale_of(const char* block) { return half_at(block); }
  template <class Group>
  static INLINE Vec scales_of_group(Group p) {
    return half_floats<F::kBytes>(p);
  }
  static INLINE HalfFloats numbers_of_blocks(const char* p) { return half_floats_of_blocks<F::kBytes>(p); }
  static INLINE void scales(float* scale, float* offset, const uint8_t* block, int) {
    *scale = F::scale_of(reinterpret_cast<const char*>(block));
    if (F::kOffset) *offset = half_at(block + 2);
  }
};

template <class F, Format kFormat>
struct OfBytes : BlockOf32<F, kFormat> {
  static constexpr int kLargest = 127, kZero = kSignedZero;
  static constexpr bool kSigned = true;

  template <class Group>
  static INLINE Pair unpack(Group p) {
    return {pieces<F::kBytes>(p + F::kLow), pieces<F::kBytes>(p + F::kLow + 16)};
  }
  static INLINE void codes(uint8_t* to, const uint8_t* block, int) {
    for (int i = 0; i < 32; ++i) to[i] = block[F::kLow + i] ^ kSignedZero;
  }
};

// 16 values in the low nibbles, then 16 in the high nibbles; fifth bits, if there are any, are added.
template <class F, Format kFormat>
struct OfNibbles : BlockOf32<F, kFormat> {
  template <class Group>
  static INLINE Pair unpack(Group p) {
    const Pair low = nibbles<F::kBytes>(p + F::kLow);
    if constexpr (!F::kFifth) return low;
    const Pair high = fifth_bits<F::kBytes>(p + F::kFifth);
    return {low.first | high.first, low.second | high.second};
  }
  static INLINE void codes(uint8_t* to, const uint8_t* block, int) {
    const Codes both = load_codes(block + F::kLow);
    store_codes(to, both & (uint8_t)15);
    store_codes(to + 16, both >> 4);
    if (F::kFifth) add_fifth_bits(to, block + F::kFifth);
  }
};

// Nibbles that index a table of 16 bytes, F::levels(): signed, or less F::kZero.
template <class F, Format kFormat>
struct OfLevels : BlockOf32<F, kFormat> {
  static constexpr int kLargest = 127, kZero = kSignedZero;
  static constexpr bool kSigned = true, kHasLevels = true;

  static INLINE Sixteen unsigned_levels() {  // if there is no product of signed bytes
    return F::kSigned ? F::levels() ^ (int8_t)kSignedZero : F::levels();
  }
  template <class Group>
  static INLINE Pair unpack(Group p) {
    const Pair numbers = nibbles<F::kBytes>(p + F::kLow);
    return {from_table(F::levels(), numbers.first), from_table(F::levels(), numbers.second)};
  }
  static INLINE void codes(uint8_t* to, const uint8_t* block, int) {
    const Codes both = load_codes(block + F::kLow);
    const Sixteen codes = F::unsigned_levels();
    store_codes(to, (Codes)look_up(codes, (Sixteen)(both & (uint8_t)15)));
    store_codes(to + 16, (Codes)look_up(codes, (Sixteen)(both >> 4)));
  }
};

// ---- the formats

#ifdef DOT_U8_I8
constexpr int kMostBeside = 4;
#else  // the dot product's temporaries need the registers
constexpr int kMostBeside = 2;
#endif

struct Q8_0 : OfBytes<Q8_0, kQ8_0> {
  static constexpr int kLow = 2, kBeside = kMostBeside;
};

struct Q4_0 : OfNibbles<Q4_0, kQ4_0> {
  static constexpr int kLow = 2, kLargest = 15, kZero = 8, kBeside = kMostBeside;
};

struct Q4_1 : OfNibbles<Q4_1, kQ4_1> {
  static constexpr int kLow = 4, kLargest = 15;
  static constexpr bool kOffset = true;
};

struct Q5_0 : OfNibbles<Q5_0, kQ5_0> {
  static constexpr int kLow = 6, kFifth = 2, kLargest = 31, kZero = 16;
};

struct Q5_1 : OfNibbles<Q5_1, kQ5_1> {
  static constexpr int kLow = 8, kFifth = 4, kLargest = 31, kBeside = 1;
  static constexpr bool kOffset = true;
};

struct IQ4_NL : OfLevels<IQ4_NL, kIQ4_NL> {
  static constexpr int kLow = 2;
  static INLINE Sixteen levels() {
    return Sixteen{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  }
};

// The scale of MXFP4 is its first byte e, and half of 2^(e - 127), since the levels are doubled. They are
// small: with 12 added none is negative, and sums of several products still fit 16 bits.
struct MXFP4 : OfLevels<MXFP4, kMXFP4> {
  static constexpr int kLow = 1, kLargest = 24, kZero = 12;
  static constexpr bool kSigned = false;
  static INLINE Sixteen levels() {
    return Sixteen{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12} + (int8_t)kZero;
  }

  // The bits of the scales: 2^-128 and 2^-127 are subnormal.
  static INLINE Int bits_of_scales(Int e) { return e < 2 ? (e + 1) << 21 : (e - 1) << 23; }

  static INLINE float scale_of(const char* block) {
    return ((Vec)bits_of_scales(Int{} + static_cast<uint8_t>(*block)))[0];
  }
  static INLINE Vec scales_of_group(const char* p) {
    Int e = {};
    for (int i = 0; i < LANES; ++i) e[i] = static_cast<uint8_t>(p[i / 4 * kBytes]);
    return (Vec)bits_of_scales(e);
  }
  static INLINE Vec scales_of_group(HalfGroup group) {
    Int bits = bits_of_scales(Int{} + static_cast<uint8_t>(group.p[0]));
    const Int second = bits_of_scales(Int{} + static_cast<uint8_t>(group.p[kBytes]));
    for (int i = 4; i < LANES; ++i) bits[i] = i < 8 ? second[i] : 0;
    return (Vec)bits;
  }
  static INLINE HalfFloats numbers_of_blocks(const char* p) {
    Int e = {};
    for (int i = 0; i < LANES; ++i) e[i] = static_cast<uint8_t>(p[block_of_lane(i) * kBytes]);
    return {(Vec)bits_of_scales(e), Vec{}};
  }
};

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
