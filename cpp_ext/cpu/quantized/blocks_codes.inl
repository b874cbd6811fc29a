// Formats of blocks of 256 signed codes: w = step sub_scale code. A block has one step, and sub-blocks of
// kUnit, 16 or 32, values have small integers as their scales. The codes are levels of a table (iq4_xs),
// ternary digits (tq1_0, tq2_0), or vectors of a codebook (iq1, iq2, iq3). airllm/formats/ says what each
// byte means.
//
// A format is a struct derived from BlockOfCodes. It has
//   step(block)            the float32 scale of the block
//   sub_scale(block, j)    the integer scale of a sub-block
//   unpack(to, block, c)   the 32 codes of chunk c
//   Reader                 all codes of a block, as vectors: read with unpack(), or as they are stored
#ifndef AIRLLM_BLOCKS_CODES_INL
#define AIRLLM_BLOCKS_CODES_INL
#include "blocks_256.inl"
#include "blocks_32.inl"
#include "codebooks.h"
#include "formats.h"

namespace cpu::ISA {
namespace {
namespace stored {

// The codes of a block in order, unpacked to memory.
template <class F>
struct CodesInMemory256 {
  alignas(64) int8_t codes[256];
  explicit INLINE CodesInMemory256(const char* p) {
    for (int c = 0; c < 8; ++c) F::unpack(codes + 32 * c, reinterpret_cast<const uint8_t*>(p), c);
  }
  INLINE Bytes vector(int v) const { return load_bytes(codes + v * static_cast<int>(sizeof(Bytes))); }
};

// Codes that are fields of the stored bytes: a vector of these has F::kFields vectors of codes.
template <class F>
struct StoredFields {
  const char* p;
  explicit INLINE StoredFields(const char* block) : p(block + F::kLow) {}
  INLINE Bytes vector(int v) const {
    const Bytes bytes = load_bytes(p + v / F::kFields * static_cast<int>(sizeof(Bytes)));
    return F::code(field(bytes, v % F::kFields * F::kBits, (1 << F::kBits) - 1));
  }
};

template <class F, Format kFormatOf>
struct BlockOfCodes {
  static constexpr Format kFormat = kFormatOf;
  static constexpr int kValues = 256, kBytes = kBlocks[kFormat].bytes;
  static constexpr int kLargest = 127, kZero = kSignedZero, kFields = 1;
  static constexpr bool kSigned = true, kOffset = false;
  static_assert(kBlocks[kFormat].values == kValues);

  using Reader = CodesInMemory256<F>;
  // The number of the 16 values whose codes are field f of the bytes that a reader reads at offset `at`.
  static constexpr int unit(int at, int) { return at / 16; }

  static INLINE float block_scale(const char* p) { return F::step(reinterpret_cast<const uint8_t*>(p)); }
  static INLINE auto sub_blocks(const char* p) {
    int16_t scales[256 / F::kUnit];
    for (int j = 0; j < 256 / F::kUnit; ++j)
      scales[j] = static_cast<int16_t>(F::sub_scale(reinterpret_cast<const uint8_t*>(p), j));
    SubBlocks<F::kUnit> sub = {};
    for (int i = 0; i < sub.kWords; ++i) sub.scales[i] = load_words(scales + 8 * i);
    return sub;
  }

  // 32 values as floats need them, as those of blocks_32.inl.
  static INLINE void codes(uint8_t* to, const uint8_t* block, int chunk) {
    F::unpack(reinterpret_cast<int8_t*>(to), block, chunk);
    for (int i = 0; i < 32; ++i) to[i] ^= kSignedZero;
  }
  static INLINE void scales(float* scale, float*, const uint8_t* block, int chunk) {
    constexpr int kOf = 32 / F::kUnit;  // sub-blocks in a chunk
    const float step = F::step(block);
    for (int g = 0; g < kOf; ++g) scale[g] = step * F::sub_scale(block, chunk * kOf + g);
  }
};

INLINE uint32_t pair_at(const uint8_t* p) { return word_at(reinterpret_cast<const char*>(p)); }
INLINE uint32_t four_at(const uint8_t* p) { return four_at(reinterpret_cast<const char*>(p)); }
INLINE int nibble_at(const uint8_t* p, int i) { return p[i / 2] >> i % 2 * 4 & 15; }

// ---- levels of a table

// The kBits-bit fields of `bits`, the lowest first, as eight bytes.
template <int kBits>
INLINE uint64_t bytes_of_fields(uint64_t bits) {
  constexpr uint64_t kByte = (1 << kBits) - 1;
  bits = (bits | bits << 4 * (8 - kBits)) &
         (kByte << 3 * kBits | kByte << 2 * kBits | kByte << kBits | kByte) * 0x100000001;
  bits = (bits | bits << 2 * (8 - kBits)) & (kByte << kBits | kByte) * 0x1000100010001;
  return (bits | bits << (8 - kBits)) & kByte * 0x101010101010101;
}

struct IQ4_XS : BlockOfCodes<IQ4_XS, kIQ4_XS> {
  static constexpr int kUnit = 32, kLow = 8, kFields = 2, kBits = 4;
  using Reader = StoredFields<IQ4_XS>;
  static constexpr int unit(int at, int f) { return at / 16 * 2 + f; }
  static INLINE Bytes code(Bytes index) { return from_table(IQ4_NL::levels(), index); }
  static INLINE float step(const uint8_t* block) { return half_at(block); }
  static INLINE SubBlocks<kUnit> sub_blocks(const char* p) {
    const uint64_t low = bytes_of_fields<4>(four_at(p + 4)), high = bytes_of_fields<2>(word_at(p + 2));
    return {{words_of(low | high << 4) - (int16_t)32}, {}};
  }
  static INLINE int sub_scale(const uint8_t* block, int j) {  // six bits; the upper two are separate
    return (nibble_at(block + 4, j) | (pair_at(block + 2) >> 2 * j & 3) << 4) - 32;
  }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    const Codes both = load_codes(block + kLow + 16 * chunk);
    uint8_t* const bytes = reinterpret_cast<uint8_t*>(to);
    store_codes(bytes, (Codes)look_up(IQ4_NL::levels(), (Sixteen)(both & (uint8_t)15)));
    store_codes(bytes + 16, (Codes)look_up(IQ4_NL::levels(), (Sixteen)(both >> 4)));
  }
};

// ---- ternary digits, -1 to 1

template <class F, Format kFormat>
struct TernaryBlock : BlockOfCodes<F, kFormat> {
  static constexpr int kUnit = 32, kLargest = 1;
  static INLINE float step(const uint8_t* block) { return half_at(block + F::kScale); }
  static INLINE int sub_scale(const uint8_t*, int) { return 1; }
};

struct TQ2_0 : TernaryBlock<TQ2_0, kTQ2_0> {  // two bits each
  static constexpr int kScale = 64, kLow = 0, kFields = 4, kBits = 2;
  using Reader = StoredFields<TQ2_0>;
  static constexpr int unit(int at, int f) { return at / 32 * 8 + 2 * f + at / 16 % 2; }
  static INLINE Bytes code(Bytes bits) { return bits - (int8_t)1; }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    const uint8_t* const from = block + chunk / 4 * 32;
    for (int i = 0; i < 32; ++i) to[i] = static_cast<int8_t>((from[i] >> chunk % 4 * 2 & 3) - 1);
  }
};

// Five digits in a byte, which is a fraction of 256: a multiplication by a power of 3 moves one in front. The
// last four bytes have four digits each.
struct TQ1_0 : TernaryBlock<TQ1_0, kTQ1_0> {
  static constexpr int kScale = 52;

  template <int kCount>
  static INLINE void digits(int8_t* to, const uint8_t* from, int number) {
    constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
    for (int i = 0; i < kCount; ++i) {
      const uint8_t moved = static_cast<uint8_t>(from[i] * kPowers[number]);
      to[i] = static_cast<int8_t>((moved * 3 >> 8) - 1);
    }
  }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    if (chunk < 5) return digits<32>(to, block, chunk);
    digits<16>(to, block + 32, 2 * chunk - 10);
    if (chunk < 7) return digits<16>(to + 16, block + 32, 2 * chunk - 9);
    for (int i = 0; i < 4; ++i) digits<4>(to + 16 + 4 * i, block + 48, i);
  }
};

// ---- codebooks: vectors of 4 or 8 positive values, with signs

constexpr uint64_t kEachByte = 0x0101010101010101u;

template <class Word>
INLINE void store_vector(int8_t* to, Word vector) {
  __builtin_memcpy(to, &vector, sizeof vector);
}
// `negative` has a byte of ones for each negative value. No value is zero, so no byte overflows.
INLINE uint64_t with_signs(uint64_t values, uint64_t negative) {
  return (values ^ negative) + (negative & kEachByte);
}
INLINE uint64_t two_vectors(uint32_t first, uint32_t second) {
  return first | static_cast<uint64_t>(second) << 32;
}

// The block's float16 is its first number; kDivisor of its parts are a step. A sub-block has 2 s + 1 steps.
template <class F, Format kFormat>
struct CodebookBlock : BlockOfCodes<F, kFormat> {
  static INLINE float step(const uint8_t* block) { return half_at(block) * (1.f / F::kDivisor); }
  static INLINE int sub_scale(const uint8_t* block, int j) { return 2 * F::scale_bits(block, j) + 1; }
};

struct IQ2_XXS : CodebookBlock<IQ2_XXS, kIQ2_XXS> {
  static constexpr int kUnit = 32, kDivisor = 8, kLargest = 43;
  static INLINE int scale_bits(const uint8_t* block, int j) { return block[9 + 8 * j] >> 4; }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    const uint8_t* const index = block + 2 + 8 * chunk;
    const uint32_t signs = four_at(index + 4);
    for (int i = 0; i < 4; ++i)
      store_vector(to + 8 * i,
                   with_signs(kBookIQ2_XXS.words[index[i]], kSignMasks.of_seven[signs >> 7 * i & 127]));
  }
};

struct IQ2_XS : CodebookBlock<IQ2_XS, kIQ2_XS> {
  static constexpr int kUnit = 16, kDivisor = 8, kLargest = 43;
  static INLINE int scale_bits(const uint8_t* block, int j) { return nibble_at(block + 66, j); }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    for (int i = 0; i < 4; ++i) {
      const uint32_t both = pair_at(block + 2 + 8 * chunk + 2 * i);
      store_vector(to + 8 * i, with_signs(kBookIQ2_XS.words[both & 511], kSignMasks.of_seven[both >> 9]));
    }
  }
};

struct IQ2_S : CodebookBlock<IQ2_S, kIQ2_S> {
  static constexpr int kUnit = 16, kDivisor = 8, kLargest = 43;
  static INLINE int scale_bits(const uint8_t* block, int j) { return nibble_at(block + 74, j); }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    const uint8_t *const low = block + 2 + 4 * chunk, *const signs = low + 32;
    for (int i = 0; i < 4; ++i) {
      const int index = low[i] | (block[66 + chunk] >> 2 * i & 3) << 8;
      store_vector(to + 8 * i, with_signs(kBookIQ2_S.words[index], kSignMasks.of_eight[signs[i]]));
    }
  }
};

struct IQ3_XXS : CodebookBlock<IQ3_XXS, kIQ3_XXS> {
  static constexpr int kUnit = 32, kDivisor = 4, kLargest = 62;
  static INLINE int scale_bits(const uint8_t* block, int j) { return block[69 + 4 * j] >> 4; }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    const uint8_t* const index = block + 2 + 8 * chunk;
    const uint32_t signs = four_at(block + 66 + 4 * chunk);
    for (int i = 0; i < 4; ++i)
      store_vector(to + 8 * i, with_signs(two_vectors(kBookIQ3_XXS.words[index[2 * i]],
                                                      kBookIQ3_XXS.words[index[2 * i + 1]]),
                                          kSignMasks.of_seven[signs >> 7 * i & 127]));
  }
};

struct IQ3_S : CodebookBlock<IQ3_S, kIQ3_S> {
  static constexpr int kUnit = 32, kDivisor = 1, kLargest = 15;
  static INLINE int scale_bits(const uint8_t* block, int j) { return nibble_at(block + 106, j); }
  static INLINE uint32_t vector(const uint8_t* block, int chunk, int i) {
    return kBookIQ3_S.words[block[2 + 8 * chunk + i] | (block[66 + chunk] >> i & 1) << 8];
  }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    for (int i = 0; i < 4; ++i)
      store_vector(to + 8 * i,
                   with_signs(two_vectors(vector(block, chunk, 2 * i), vector(block, chunk, 2 * i + 1)),
                              kSignMasks.of_eight[block[74 + 4 * chunk + i]]));
  }
};

// ---- iq1: vectors of -8, 0 and 8 eighths, to which 1 is added, or -1 where `negative` is 1

INLINE uint64_t with_offset(uint64_t values, int negative) {
  constexpr uint64_t kHighest = 0x80 * kEachByte;
  const uint64_t odd = values | kEachByte, two = negative * (2 * kEachByte);
  return ((odd | kHighest) - two) ^ (~odd & kHighest);  // byte by byte
}

struct IQ1_S : CodebookBlock<IQ1_S, kIQ1_S> {
  static constexpr int kUnit = 32, kDivisor = 8, kLargest = 9;
  static INLINE int scale_bits(const uint8_t* block, int j) { return block[35 + 2 * j] >> 4 & 7; }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    const uint32_t rest = pair_at(block + 34 + 2 * chunk);
    for (int i = 0; i < 4; ++i) {
      const int index = block[2 + 4 * chunk + i] | (rest >> 3 * i & 7) << 8;
      store_vector(to + 8 * i, with_offset(kBookIQ1.words[index], rest >> 15));
    }
  }
};

struct IQ1_M : CodebookBlock<IQ1_M, kIQ1_M> {
  static constexpr int kUnit = 16, kDivisor = 8, kLargest = 9;
  static INLINE float step(const uint8_t* block) {  // a nibble of the float16 is above four scales
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= (pair_at(block + 48 + 2 * i) >> 12) << 4 * i;
    const uint8_t half[2] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
    return half_at(half) * (1.f / kDivisor);
  }
  static INLINE int scale_bits(const uint8_t* block, int j) {
    return pair_at(block + 48 + j / 4 * 2) >> j % 4 * 3 & 7;
  }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    for (int i = 0; i < 4; ++i) {
      const int rest = nibble_at(block + 32, 4 * chunk + i);
      const int index = block[4 * chunk + i] | (rest & 7) << 8;
      store_vector(to + 8 * i, with_offset(kBookIQ1.words[index], rest >> 3));
    }
  }
};

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
