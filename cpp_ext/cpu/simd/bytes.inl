// Vectors of bytes, as wide as a vector of floats, and their dot products: the base of products with stored
// blocks.
#ifndef AIRLLM_BYTES_INL
#define AIRLLM_BYTES_INL
#include "vectors.inl"

namespace cpu::ISA {
namespace {
namespace stored {

typedef int8_t Bytes __attribute__((vector_size(4 * LANES)));
typedef uint8_t UnsignedBytes __attribute__((vector_size(4 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));
typedef uint64_t Longs __attribute__((vector_size(4 * LANES)));
typedef uint16_t Words __attribute__((vector_size(4 * LANES)));
typedef int8_t Sixteen __attribute__((vector_size(16)));
typedef int8_t BytesInMemory __attribute__((vector_size(4 * LANES), aligned(1), may_alias));
typedef int8_t SixteenInMemory __attribute__((vector_size(16), aligned(1), may_alias));
typedef int8_t LanesOfBytes __attribute__((vector_size(LANES)));
typedef int8_t LanesOfBytesInMemory __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int32_t IntInMemory __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef int16_t EightWords __attribute__((vector_size(16)));
typedef int16_t EightWordsInMemory __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint16_t EightUnsigned __attribute__((vector_size(16)));
typedef int32_t FourInts __attribute__((vector_size(16)));
typedef float FourFloats __attribute__((vector_size(16)));

INLINE Bytes load_bytes(const void* p) { return *static_cast<const BytesInMemory*>(p); }
INLINE Sixteen load_sixteen(const void* p) { return *static_cast<const SixteenInMemory*>(p); }
INLINE EightWords load_words(const void* p) { return *static_cast<const EightWordsInMemory*>(p); }
INLINE Int load_int(const void* p) { return *static_cast<const IntInMemory*>(p); }
INLINE void store_int(void* p, Int v) { *static_cast<IntInMemory*>(p) = v; }
INLINE Vec to_float(Int v) { return __builtin_convertvector(v, Vec); }

// Two vectors as one, and as many pieces of 16 bytes as a vector has: piece(0), piece(1) ...
template <class V, int... I>
INLINE auto joined(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, I...);
}
template <class V>
INLINE auto joined(V a, V b) {
  return joined(a, b, std::make_integer_sequence<int, 2 * static_cast<int>(sizeof(V))>{});
}
template <class Piece>
INLINE Bytes bytes_of_pieces(const Piece& piece) {
  if constexpr (LANES == 4)
    return (Bytes)piece(0);
  else if constexpr (LANES == 8)
    return (Bytes)joined(piece(0), piece(1));
  else
    return (Bytes)joined(joined(piece(0), piece(1)), joined(piece(2), piece(3)));
}
// As many words of four or eight bytes as a vector has: word(0), word(1) ...
#if LANES != 8  // else in avx2_block_bytes.inl
template <class Word, int... I>
INLINE Bytes bytes_of_words(const Word& word, std::integer_sequence<int, I...>) {
  typedef decltype(word(0)) Each __attribute__((vector_size(4 * LANES)));
  return (Bytes)Each{word(I)...};
}
template <class Word>
INLINE Bytes bytes_of_words(const Word& word) {
  constexpr int kWords = 4 * LANES / static_cast<int>(sizeof word(0));
  return bytes_of_words(word, std::make_integer_sequence<int, kWords>{});
}
#endif

// `bits` of each byte, starting at bit `shift`.
INLINE Bytes field(Bytes v, int shift, int mask) { return (Bytes)((Words)v >> shift) & (int8_t)mask; }

// sum[i] += the products of four neighbours; u is 0 to 63, x is -127 to 127. The instruction set decides
// which lane gets which four, but they stay within their 16 bytes.
// dot_signed() takes w of -128 to 127, and also adds kSignedZero times the sum of x.
#if defined(DOT_U8_I8)
constexpr int kSignedZero = 128;
INLINE Int dot_small(Int sum, Bytes u, Bytes x) { return DOT_U8_I8(sum, u, x); }
INLINE Int dot_signed(Int sum, Bytes w, Bytes x) {
  return DOT_U8_I8(sum, w ^ (int8_t)-128, x);  // w + 128, which is not negative
}
#elif defined(PAIRS_U8_I8)
constexpr int kSignedZero = 0;
INLINE Int dot_small(Int sum, Bytes u, Bytes x) { return sum + FOURS_OF_PAIRS(PAIRS_U8_I8(u, x)); }
INLINE Int dot_signed(Int sum, Bytes w, Bytes x) { return sum + FOURS_OF_PAIRS(PAIRS_I8_I8(w, x)); }
#elif defined(DOT_I8_I8)
constexpr int kSignedZero = 0;
INLINE Int dot_small(Int sum, Bytes u, Bytes x) { return DOT_I8_I8(sum, u, x); }
INLINE Int dot_signed(Int sum, Bytes w, Bytes x) { return DOT_I8_I8(sum, w, x); }
#else
constexpr int kSignedZero = 0;
#ifndef SUMS_OF_PAIRS  // of the products of int16
INLINE Int sums_of_pairs(Shorts a, Shorts b) {
  const Int ai = (Int)a, bi = (Int)b;
  return (ai << 16 >> 16) * (bi << 16 >> 16) + (ai >> 16) * (bi >> 16);
}
#define SUMS_OF_PAIRS(a, b) sums_of_pairs(a, b)
#endif
INLINE Int dot_signed(Int sum, Bytes w, Bytes x) {
  const Shorts even_w = (Shorts)w << 8 >> 8, odd_w = (Shorts)w >> 8;
  const Shorts even_x = (Shorts)x << 8 >> 8, odd_x = (Shorts)x >> 8;
  return sum + SUMS_OF_PAIRS(even_w, even_x) + SUMS_OF_PAIRS(odd_w, odd_x);
}
INLINE Int dot_small(Int sum, Bytes u, Bytes x) { return dot_signed(sum, u, x); }
#endif

// As dot_small(), with the products of the four bytes of a lane in that lane.
INLINE Int dot_in_lanes(Int sum, Bytes u, Bytes x) {
#ifdef DOT_IN_LANES
  return DOT_IN_LANES(sum, u, x);
#else
  return dot_small(sum, u, x);
#endif
}

// The sum of the products of the two words of each lane.
INLINE Int products_of_words(Int a, Int b) {
#ifdef SUMS_OF_PAIRS
  return SUMS_OF_PAIRS((Shorts)a, (Shorts)b);
#else
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// The products of eight words, added in pairs.
INLINE FourInts fours_of_words(EightWords a, EightWords b) {
#if defined(AIRLLM_X86)
  return (FourInts)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(AIRLLM_ARM)
  return (FourInts)vpaddq_s32(vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b)),
                              vmull_high_s16((int16x8_t)a, (int16x8_t)b));
#else
  const FourInts ai = (FourInts)a, bi = (FourInts)b;
  return (ai << 16 >> 16) * (bi << 16 >> 16) + (ai >> 16) * (bi >> 16);
#endif
}

INLINE uint16_t word_at(const char* p) {
  return static_cast<uint16_t>(static_cast<unsigned char>(p[0]) | static_cast<unsigned char>(p[1]) << 8);
}

INLINE uint32_t four_at(const void* p) {
  uint32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
}
// Four bytes, in each lane.
INLINE Int four_in_all_lanes(const void* p) { return Int{} + static_cast<int32_t>(four_at(p)); }

// GCC would compute all products before it adds the first of them, and spill them.
template <class V>
INLINE void keep_in_register([[maybe_unused]] V& v) {
#ifdef KEEP_IN_REGISTER
  KEEP_IN_REGISTER(v);
#endif
}

// A group is LANES / 4 blocks of kStride bytes. Each block has 16 bytes, four lanes, of a vector.
constexpr int kGroup = LANES / 4;

// The first half of a group of four blocks. The other two blocks may hold any codes, since x is zero there,
// and have scales of zero.
struct HalfGroup {
  const char* p;
  INLINE HalfGroup operator+(int bytes) const { return {p + bytes}; }
};

// Two float16 of each of LANES blocks, in the order of sums_of_blocks().
struct HalfFloats {
  Vec first, second;
};
constexpr int block_of_lane(int lane) { return kGroup * (lane % 4) + lane / 4; }

// Bytes of a table, selected by the indices.
INLINE Sixteen look_up(Sixteen table, Sixteen index) {
#ifdef LOOK_UP
  return (Sixteen)LOOK_UP(table, index);
#else
  Sixteen found;
  for (int i = 0; i < 16; ++i) found[i] = table[index[i]];
  return found;
#endif
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
