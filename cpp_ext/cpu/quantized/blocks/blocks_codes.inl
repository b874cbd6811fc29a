// Formats of blocks of 256 signed codes: w = step sub_scale code. A block has one step, and sub-blocks of
// kUnit, 16 or 32, values have small integers as their scales. The codes are levels of a table (iq4_xs) or
// ternary digits (tq1_0, tq2_0); blocks_codebook.inl has those of codebooks (iq1, iq2, iq3).
// airllm/formats/ says what each byte means.
//
// A format is a struct derived from BlockOfCodes. It has
//   step(block)            the float32 scale of the block
//   sub_blocks(p)          the integer scales of all sub-blocks
//   sub_scale(block, j)    that of one
// and its codes 16 at a time, a piece, as two vectors of bytes and what makes codes of them:
//   piece(block, p)        what is looked up in a codebook, or stored
//   rest(block, p)         the signs, what is added, or powers of 3
//   code(piece, rest)      for vectors of any length, so that several pieces share instructions
//   Parts(block)           what is found of a whole block first, with the pieces(v) and the rest(v) of a
//                          vector, where that is faster
// or, where codes are fields of the stored bytes, StoredFields as its Reader, and unpack().
#ifndef AIRLLM_BLOCKS_CODES_INL
#define AIRLLM_BLOCKS_CODES_INL
#include <type_traits>

#include "../formats.h"
#include "blocks_256.inl"
#include "blocks_32.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// Pieces of a block as they are found one by one.
template <class F>
struct PartsOfBlock {
  const uint8_t* block;
  explicit INLINE PartsOfBlock(const uint8_t* p) : block(p) {}
  INLINE Bytes pieces(int v) const {
    return bytes_of_pieces([&](int i) { return F::piece(block, v * kStep / 16 + i); });
  }
  INLINE Bytes rest(int v) const {
    return bytes_of_pieces([&](int i) { return F::rest(block, v * kStep / 16 + i); });
  }
};

// The codes of a block in order, made in registers: a load would wait for the shorter stores before it.
template <class F>
struct CodesOfPieces {
  typename F::Parts parts;
  explicit INLINE CodesOfPieces(const char* p) : parts(reinterpret_cast<const uint8_t*>(p)) {}
  INLINE Bytes vector(int v) const { return F::code(parts.pieces(v), parts.rest(v)); }
};

template <class F>
NOINLINE void unpack_block(int8_t* codes, const char* p) {
  if constexpr (std::is_same_v<typename F::Reader, CodesOfPieces<F>>) {
    const CodesOfPieces<F> all(p);
#pragma GCC unroll 16  // places are constants
    for (int v = 0; v < 256 / kStep; ++v)
      *reinterpret_cast<BytesInMemory*>(codes + v * kStep) = all.vector(v);
  } else {
    for (int c = 0; c < 8; ++c) F::unpack(codes + 32 * c, reinterpret_cast<const uint8_t*>(p), c);
  }
}

// The codes of a block in order, unpacked to memory.
template <class F>
struct CodesInMemory256 {
  alignas(64) int8_t codes[256];
  explicit INLINE CodesInMemory256(const char* p) { unpack_block<F>(codes, p); }
  INLINE Bytes vector(int v) const { return load_bytes(codes + v * kStep); }
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
  static constexpr bool kSigned = true, kOffset = false, kNegatesX = false, kInTwos = false,
                        kHasOneScale = false;
  static_assert(kBlocks[kFormat].values == kValues);

  // Panels read codes from memory: those of LANES rows at once, made in registers, would be too much code.
  using Parts = PartsOfBlock<F>;
  using Reader = CodesOfPieces<F>;
  using PanelReader = CodesInMemory256<F>;
  using OfFewRows = F;  // the format with the codes that products of a few rows take
  // The number of the 16 values whose codes are field f of the bytes that a reader reads at offset `at`.
  static constexpr int unit(int at, int) { return at / 16; }

  static INLINE float block_scale(const char* p) { return F::step(reinterpret_cast<const uint8_t*>(p)); }

  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    for (int p = 2 * chunk; p < 2 * chunk + 2; ++p, to += 16)
      *reinterpret_cast<SixteenInMemory*>(to) = F::code(F::piece(block, p), F::rest(block, p));
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

typedef uint64_t TwoLongs __attribute__((vector_size(16)));
typedef uint32_t FourUnsigned __attribute__((vector_size(16)));

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
  using PanelReader = Reader;
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
  static INLINE SubBlocks<kUnit> sub_blocks(const char*) { return {{EightWords{} + (int16_t)1}, {}}; }
  static INLINE int sub_scale(const uint8_t*, int) { return 1; }
};

// As products of a few rows take them: 0 to 2, all with one scale.
template <class Base>
struct Digits : Base {
  static constexpr bool kSigned = false, kHasOneScale = true;
  static constexpr int kZero = 1, kLargest = 2;
};

struct DigitsOfTQ2_0;
struct TQ2_0 : TernaryBlock<TQ2_0, kTQ2_0> {  // two bits each
  static constexpr int kScale = 64, kLow = 0, kFields = 4, kBits = 2;
  using OfFewRows = DigitsOfTQ2_0;
  using Reader = StoredFields<TQ2_0>;
  using PanelReader = Reader;
  static constexpr int unit(int at, int f) { return at / 32 * 8 + 2 * f + at / 16 % 2; }
  static INLINE Bytes code(Bytes bits) { return bits - (int8_t)1; }
  static INLINE void unpack(int8_t* to, const uint8_t* block, int chunk) {
    const uint8_t* const from = block + chunk / 4 * 32;
    for (int i = 0; i < 32; ++i) to[i] = static_cast<int8_t>((from[i] >> chunk % 4 * 2 & 3) - 1);
  }
};

struct DigitsOfTQ2_0 : Digits<TQ2_0> {
  using Reader = StoredFields<DigitsOfTQ2_0>;
  static INLINE Bytes code(Bytes bits) { return bits; }
};

// Five digits in a byte, which is a fraction of 256: a multiplication by a power of 3 moves one in front. The
// first 32 bytes have one power for each chunk, 16 bytes one for each piece, and the last four bytes have
// four digits each. The powers are words, of two bytes each.
struct Powers {
  alignas(64) uint16_t of_piece[16][8] = {};
  constexpr Powers() {
    constexpr uint16_t kPowers[] = {1, 3, 9, 27, 81};
    for (int p = 0; p < 16; ++p)
      for (int i = 0; i < 8; ++i) of_piece[p][i] = kPowers[p < 10 ? p / 2 : p < 15 ? p - 10 : i / 2];
  }
};
inline constexpr Powers kPowersOf3;

// Each byte times the power of its word, without what does not fit a byte.
template <class V>
INLINE V times_powers(V bytes, V powers) {
  typedef uint16_t Each __attribute__((vector_size(sizeof(V))));
  const Each both = (Each)bytes, low = both * (Each)powers, high = (both & (uint16_t)0xff00) * (Each)powers;
  return (V)((low & (uint16_t)0x00ff) | high);
}
// The digits in front of bytes: a third of 256 is a digit. Signed comparisons need bytes with 128 more, which
// they still have after multiplications by powers of 3, since these are odd.
constexpr int8_t kHalfOf256 = -128;
template <class V>
INLINE V digits_of(V bytes) {
  return V{} - (V)(bytes > (int8_t)(85 - 128)) - (V)(bytes > (int8_t)(170 - 128));
}

struct DigitsOfTQ1_0;
struct TQ1_0 : TernaryBlock<TQ1_0, kTQ1_0> {
  static constexpr int kScale = 52;
  using OfFewRows = DigitsOfTQ1_0;
  static INLINE Sixteen piece(const uint8_t* block, int p) {
    if (p == 15) return (Sixteen)(FourUnsigned{} + four_at(block + 48));
    return load_sixteen(block + (p < 10 ? p % 2 * 16 : 32));
  }
  static INLINE Sixteen rest(const uint8_t*, int p) { return load_sixteen(kPowersOf3.of_piece[p]); }
  template <class V>
  static INLINE V code(V bytes, V powers) {
    return digits_of(times_powers(bytes ^ kHalfOf256, powers)) - (int8_t)1;
  }
};

// The digits of a block in order. A byte times 3 has its next digit in front: two additions. With vectors of
// 64 bytes these wait for each other, and multiplications by powers are faster.
struct DigitsInOrder {
  const uint8_t* block;
  explicit INLINE DigitsInOrder(const char* p) : block(reinterpret_cast<const uint8_t*>(p)) {}
  template <class V>
  static INLINE V times_three(V bytes, int times) {
    typedef uint8_t Each __attribute__((vector_size(sizeof(V))));
    Each each = (Each)bytes;
    for (int i = 0; i < times; ++i) each = each + each + each;
    return (V)each;
  }
  INLINE Sixteen piece(int p) const { return TQ1_0::piece(block, p) ^ kHalfOf256; }
  INLINE Sixteen last() const { return times_powers(piece(15), TQ1_0::rest(block, 15)); }
  // Of a block, a T: this is a template so that only vectors of 32 bytes use it.
  template <class T>
  static INLINE auto two_pieces(const T& of, int i) {
    if (i < 5) return times_three(joined(of.piece(0), of.piece(1)), i);
    const auto bytes = of.piece(10);
    if (i == 7) return joined(times_three(bytes, 4), of.last());
    return times_three(joined(bytes, times_three(bytes, 1)), 2 * (i - 5));
  }
  template <class T>
  static INLINE Bytes vector_of(const T& of, int v) {
    if constexpr (LANES == 4)
      return (Bytes)(v == 15 ? of.last() : times_three(of.piece(v), v < 10 ? v / 2 : v - 10));
    else if constexpr (LANES == 8)
      return (Bytes)two_pieces(of, v);
    else
      return times_powers(bytes_of_pieces([&](int i) { return of.piece(4 * v + i); }),
                          bytes_of_pieces([&](int i) { return TQ1_0::rest(of.block, 4 * v + i); }));
  }
  INLINE Bytes vector(int v) const { return digits_of(vector_of(*this, v)); }
};

struct DigitsOfTQ1_0 : Digits<TQ1_0> {
  using Reader = DigitsInOrder;
};

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
