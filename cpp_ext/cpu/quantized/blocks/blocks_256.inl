// The formats of blocks of 256 values ("K"). A block has sub-blocks of kUnit, 16 or 32, values, whose scales
// are small integers. w = scale sub_scale (q - kZero), or scale sub_scale q - offset_scale sub_offset
// (kOffset). airllm/formats/ says what each byte means.
//
// A chunk is 32 values. A format is a struct derived from BlockOf256 with its kLowBits and kHighBits. It
// overrides what differs:
//   kScale, kOffsetScale   the places of the block's float16 numbers
//   kLow, kRun             the place of the low bits of q: kRun bytes hold kRun values in the lowest kLowBits
//                          bits, then kRun more in the next ones, and so on
//   kHigh                  the place of its high bits: 32 bytes hold a chunk in the lowest kHighBits bits,
//                          then another one in the next ones, and so on
// and unpacks the scales of sub-blocks in two ways, since blocks are read in two shapes:
//   sub_blocks(p)                       all of a block, as words: for few rows of x, as stored
//   sub_scale(p, j), sub_offset(p, j)   of one sub-block: for panels, with many rows of x
#ifndef AIRLLM_BLOCKS_256_INL
#define AIRLLM_BLOCKS_256_INL
#include "../../simd/block_bytes.inl"
#include "../formats.h"

namespace cpu::ISA {
namespace {
namespace stored {

template <int kUnit>
struct SubBlocks {
  static constexpr int kWords = 256 / kUnit / 8;
  EightWords scales[kWords], offsets[kWords];
};

// ---- what the formats share

constexpr int kStep = 4 * LANES;  // bytes in a vector

template <class F, Format kFormatOf, int kLowBitsOf, int kHighBitsOf = 0>
struct BlockOf256 {
  static constexpr Format kFormat = kFormatOf;
  static constexpr int kValues = 256, kBytes = kBlocks[kFormat].bytes;
  static constexpr int kLowBits = kLowBitsOf, kHighBits = kHighBitsOf;
  static constexpr int kFields = 8 / kLowBits, kLowBytes = 256 / kFields;
  static constexpr int kLargest = (1 << (kLowBits + kHighBits)) - 1;  // code
  static constexpr int kZero = 0, kOffsetScale = 0, kRun = 32, kHigh = 0;
  static constexpr bool kSigned = false, kOffset = false, kNegatesX = false, kInTwos = false,
                        kHasOneScale = false;
  static_assert(kBlocks[kFormat].values == kValues);

  // The chunk whose low bits are field f of the bytes of low bits at offset `at`, and its half of 16 values.
  static constexpr int chunk(int at, int f) { return at / F::kRun * chunks_of_run() + in_run(at, f); }
  static constexpr int unit(int at, int f) { return 2 * chunk(at, f) + at / 16 % 2; }

  // Field f of the v-th vector of low bits, with its high bits.
  static INLINE Bytes unpack(Bytes low, const char* p, int v, int f) {
    const Bytes bits = field(low, kLowBits * f, (1 << kLowBits) - 1);
    if constexpr (!kHighBits) return bits;
    constexpr int kHighMask = ((1 << kHighBits) - 1) << kLowBits;
    constexpr int kNextHighBit = kHighBits * (F::kRun == 32 ? kFields : 1);  // 32 bytes further
    const int at = v * kStep, bit = high_bit(at, f);
    const Bytes high = move_bits(p + F::kHigh + high_at(at), v % 2, bit, bit + kNextHighBit, kLowBits);
    return bits | (high & (int8_t)kHighMask);
  }

  // The codes of a block, a vector of one field at a time.
  struct Reader {
    const char* p;
    explicit INLINE Reader(const char* block) : p(block) {}
    INLINE Bytes vector(int number) const {
      const int v = number / kFields;
      return unpack(load_bytes(p + F::kLow + v * kStep), p, v, number % kFields);
    }
  };

  using PanelReader = Reader;
  using OfFewRows = F;

  static INLINE float block_scale(const char* p) { return half_at(p + F::kScale); }

  static INLINE void codes(uint8_t* to, const uint8_t* block, int chunk) {
    const int run = chunk / chunks_of_run(), in_run = chunk % chunks_of_run();
    const uint8_t* const low = block + F::kLow + run * F::kRun + in_run % (F::kRun / 32) * 32;
    const int low_bit = in_run / (F::kRun / 32) * kLowBits;
    for (int i = 0; i < 32; ++i) to[i] = low[i] >> low_bit & ((1 << kLowBits) - 1);
    if (!kHighBits) return;
    const uint8_t* const high = block + F::kHigh + chunk * kHighBits / 8 * 32;
    const int high_bit = chunk * kHighBits % 8;
    for (int i = 0; i < 32; ++i) to[i] |= (high[i] >> high_bit & ((1 << kHighBits) - 1)) << kLowBits;
  }
  static INLINE void scales(float* scale, float* offset, const uint8_t* block, int chunk) {
    constexpr int kOf = 32 / F::kUnit;  // sub-blocks in a chunk
    const float d = half_at(block + F::kScale);
    for (int g = 0; g < kOf; ++g) scale[g] = d * F::sub_scale(block, chunk * kOf + g);
    if constexpr (F::kOffset) {
      const float least = half_at(block + F::kOffsetScale);
      for (int g = 0; g < kOf; ++g) offset[g] = -least * F::sub_offset(block, chunk * kOf + g);
    }
  }

  // The first byte and the lowest bit of the chunk's high bits. A byte has one bit of all eight chunks, or
  // the bits of the chunks of a run. Compilers unroll the loops that call this only if it is this short.
  static constexpr int high_at(int at) { return kHighBits == 1 ? 0 : at / F::kRun * 32; }
  static constexpr int high_bit(int at, int f) {
    static_assert(kHighBits < 2 || chunks_of_run() * kHighBits == 8);
    return kHighBits == 1 ? chunk(at, f) : in_run(at, f) * kHighBits;
  }

 private:
  static constexpr int chunks_of_run() { return F::kRun / 32 * kFields; }
  static constexpr int in_run(int at, int f) { return F::kRun / 32 * f + at / 32 % (F::kRun / 32); }
};

// Eight six-bit scales and offsets; those of the last four are split between two places.
struct SixBitScales {
  static INLINE SubBlocks<32> sub_blocks(const char* p) {
    const uint32_t scale = four_at(p + 4), offset = four_at(p + 8), rest = four_at(p + 12);
    const uint32_t scale_high = (rest & 0x0f0f0f0fu) | (scale >> 2 & 0x30303030u);
    const uint32_t offset_high = (rest >> 4 & 0x0f0f0f0fu) | (offset >> 2 & 0x30303030u);
    return {{words_of((scale & 0x3f3f3f3fu) | static_cast<uint64_t>(scale_high) << 32)},
            {words_of((offset & 0x3f3f3f3fu) | static_cast<uint64_t>(offset_high) << 32)}};
  }
  static INLINE int sub_scale(const uint8_t* block, int j) {
    const uint8_t* const p = block + 4 + j;
    return j < 4 ? p[0] & 63 : (p[4] & 15) | p[-4] >> 6 << 4;
  }
  static INLINE int sub_offset(const uint8_t* block, int j) {
    const uint8_t* const p = block + 4 + j;
    return j < 4 ? p[4] & 63 : p[4] >> 4 | p[0] >> 6 << 4;
  }
};

// ---- the formats

struct Q2_K : BlockOf256<Q2_K, kQ2_K, 2> {
  static constexpr int kScale = 80, kOffsetScale = 82, kUnit = 16, kLow = 16;
  static constexpr bool kOffset = true;
  static INLINE SubBlocks<kUnit> sub_blocks(const char* p) {
    const Sixteen both = load_sixteen(p), scales = both & (int8_t)15;
    const Sixteen offsets = (Sixteen)((EightUnsigned)both >> 4) & (int8_t)15;
    return {{first_words_of(scales), last_words_of(scales)},
            {first_words_of(offsets), last_words_of(offsets)}};
  }
  static INLINE int sub_scale(const uint8_t* block, int j) { return block[j] & 15; }
  static INLINE int sub_offset(const uint8_t* block, int j) { return block[j] >> 4; }
};

struct Q3_K : BlockOf256<Q3_K, kQ3_K, 2, 1> {
  static constexpr int kScale = 108, kUnit = 16, kZero = 4, kLow = 32, kHigh = 0;
  static INLINE SubBlocks<kUnit> sub_blocks(const char* p) {  // six bits; the upper two are stored separately
    const uint32_t a = four_at(p + 96), b = four_at(p + 100), rest = four_at(p + 104);
    const uint64_t low_a = (a & 0x0f0f0f0fu) | (rest << 4 & 0x30303030u),
                   low_b = (b & 0x0f0f0f0fu) | (rest << 2 & 0x30303030u),
                   high_a = (a >> 4 & 0x0f0f0f0fu) | (rest & 0x30303030u),
                   high_b = (b >> 4 & 0x0f0f0f0fu) | (rest >> 2 & 0x30303030u);
    return {{words_of(low_a | low_b << 32) - (int16_t)32, words_of(high_a | high_b << 32) - (int16_t)32}, {}};
  }
  static INLINE int sub_scale(const uint8_t* block, int j) {
    const uint8_t* const packed = block + 96;
    const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
    return (low | (packed[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
  }
};

struct Q4_K : BlockOf256<Q4_K, kQ4_K, 4>, SixBitScales {
  static constexpr int kScale = 0, kOffsetScale = 2, kUnit = 32, kLow = 16;
  static constexpr bool kOffset = true;
};

struct Q5_K : BlockOf256<Q5_K, kQ5_K, 4, 1>, SixBitScales {
  static constexpr int kScale = 0, kOffsetScale = 2, kUnit = 32, kLow = 48, kHigh = 16;
  static constexpr bool kOffset = true;
};

struct Q6_K : BlockOf256<Q6_K, kQ6_K, 4, 2> {
  static constexpr int kScale = 208, kUnit = 16, kZero = 32, kLow = 0, kRun = 64, kHigh = 128;
  static INLINE SubBlocks<kUnit> sub_blocks(const char* p) {
    return {{words_at(p + 192), words_at(p + 200)}, {}};
  }
  static INLINE int sub_scale(const uint8_t* block, int j) { return static_cast<int8_t>(block[192 + j]); }
};

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
