// Products with iq1, iq2, iq3 and tq1_0 on sets that select bytes of tables in two registers (AVX512_VBMI).
// All vectors of a block are looked up together, as numbers of levels of 16 bits each (NumberedCodebook);
// then the numbers become bytes in order, and the bytes levels. The signs are masks. They negate one to three
// rows of x, or the codes of panels, which multiply more rows.
#ifndef AIRLLM_CODEBOOK_LOOKUPS_INL
#define AIRLLM_CODEBOOK_LOOKUPS_INL
#ifndef ISA
#define ISA avx512
#include "../../targets/avx512_instructions.inl"
#include "../../targets/region.h"
#endif
#include "../blocks/blocks_codebook.inl"
#include "several_rows_256.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// For each byte or word of a vector, which one it is taken from.
template <class T, int kCount>
struct Places {
  alignas(64) T of[kCount] = {};
  template <class Place>
  constexpr explicit Places(Place place) {
    for (int i = 0; i < kCount; ++i) of[i] = static_cast<T>(place(i));
  }
  INLINE __m512i all() const { return _mm512_load_si512(of); }
};

INLINE __m512i bytes_of(__m512i bytes, __m512i places) {
  return _mm512_maskz_permutexvar_epi8(~0ull, places, bytes);
}

// The bytes that begin at the bits `from` of their long, or at the same bits of each long.
INLINE __m512i bits_from(__m512i longs, __m512i from) {
  return _mm512_maskz_multishift_epi64_epi8(~0ull, from, longs);
}
INLINE __m512i bits_from(__m512i longs, uint64_t from) {
  return bits_from(longs, _mm512_set1_epi64(static_cast<long long>(from)));
}

// The lowest eight bits of 64 indices, the further ones as the lowest bits of bytes, and a mask for each.
struct Indices {
  __m512i bytes;
  __mmask64 ninth = 0, tenth = 0, eleventh = 0;
  __m512i further = {};
  // Those in the upper half of a table of kCount.
  template <int kCount>
  INLINE __mmask64 in_upper_half() const {
    return kCount == 2048   ? eleventh
           : kCount == 1024 ? tenth
           : kCount == 512  ? ninth
                            : _mm512_movepi8_mask(bytes);
  }
  // The seven highest bits of eleven.
  INLINE __m512i highest() const {
    return _mm512_ternarylogic_epi64(_mm512_set1_epi8(15), _mm512_srli_epi16(bytes, 4),
                                     _mm512_slli_epi16(further, 4), 0xca);
  }
};

// The byte of a table at each index.
template <int kCount>
INLINE __m512i bytes_at(const uint8_t* table, const Indices& index) {
  if constexpr (kCount == 128) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), index.bytes, _mm512_load_si512(table + 64));
  } else {
    constexpr int kHalf = kCount / 2;
    return _mm512_mask_blend_epi8(index.in_upper_half<kCount>(), bytes_at<kHalf>(table, index),
                                  bytes_at<kHalf>(table + kHalf, index));
  }
}

// The upper bytes of F's levels at each index. They rise with the indices: of 2048, the steps between them
// are looked up, which takes three tables of two registers in place of 16.
template <class F>
INLINE __m512i high_bytes(const Indices& index) {
  if constexpr (F::kCount < 2048) {
    return bytes_at<F::kCount>(F::kBook.high, index);
  } else {
    static constexpr auto kSteps = steps(F::kBook.high);
    const Indices highest = {index.highest()};
    const __mmask64 after = _mm512_cmpgt_epu8_mask(index.bytes, bytes_at<128>(kSteps.last, highest));
    return _mm512_mask_blend_epi8(after, bytes_at<128>(kSteps.before, highest),
                                  bytes_at<128>(kSteps.after, highest));
  }
}

// Eight signs of the lowest seven bits of each byte.
INLINE __m512i eight_signs(__m512i sevens) { return bytes_at<128>(kEightSigns.of_seven, {sevens}); }

// Bytes that have a sign in each bit; those of eight values are at place_of_signs(number). Masks are read
// from memory, which takes no instruction of vectors.
template <class F>
struct SignBytes {
  alignas(64) uint64_t bits[8];
  explicit INLINE SignBytes(const char* p) {
    static constexpr Places<uint8_t, 64> kPlaces([](int i) { return F::place_of_signs(i % 32); });
    _mm512_store_si512(bits, bytes_of(F::sign_bytes(p), kPlaces.all()));
  }
  INLINE __mmask64 negative(int v) const { return bits[v]; }
};
// Signs that are stored as 256 bits.
template <class F>
struct SignBits {
  const char* p;
  explicit INLINE SignBits(const char* block) : p(block + F::kSigns) {}
  INLINE __mmask64 negative(int v) const {
    __mmask64 bits;
    __builtin_memcpy(&bits, p + 8 * v, 8);
    return bits;
  }
};

// The levels whose numbers are the lowest bits of bytes that begin at the bits `from` of each long.
template <class F>
INLINE Bytes levels_at(__m512i longs, uint64_t from) {
  return (Bytes)bytes_of(_mm512_load_si512(F::kBook.levels), bits_from(longs, from));
}

// Of a codebook of eights: the 32 words of a block. Word v of each long has levels of vector v.
template <class F>
struct Eights {
  __m512i words;
  INLINE Bytes vector(int v) const {
    return levels_at<F>(words, 0x0e0c0a0806040200u + 0x1010101010101010u * static_cast<unsigned>(v));
  }
};

// Those of two rows, which are looked up together: eight indices of one row and of the other by turns.
template <class F>
struct EightsOfTwo {
  Eights<F> first, second;
  INLINE EightsOfTwo(const char* p, const char* other) {
    const Indices found = F::indices(p, other);
    const __m512i low = bytes_at<F::kCount>(F::kBook.low, found), high = high_bytes<F>(found);
    first.words = _mm512_unpacklo_epi8(low, high), second.words = _mm512_unpackhi_epi8(low, high);
  }
};
// The number of byte i of the indices of two rows, so that the words of Eights are in their order.
constexpr int number_of_two(int i) { return i % 4 * 8 + i / 16 * 2 + i / 4 % 2; }
// For byte i of the indices of two rows: the byte at place(number) of one, or 64 bytes further of the other.
template <class Place>
constexpr Places<uint8_t, 64> places_of_two(Place place) {
  return Places<uint8_t, 64>([=](int i) { return place(number_of_two(i)) + i / 8 % 2 * 64; });
}

// Of a codebook of fours: 64 words, so that each vector of values has its 16 in the lower halves of ints.
template <class F>
struct Fours {
  __m512i ints[4];
  explicit INLINE Fours(const char* p) {
    static constexpr Places<uint32_t, 16> kTransposed([](int i) { return i % 4 * 4 + i / 4; });
    const Indices found = F::indices(p);
    const __m512i low = bytes_at<F::kCount>(F::kBook.low, found),
                  high = bytes_at<F::kCount>(F::kBook.high, found), zero = __m512i{};
    const __m512i first = _mm512_maskz_permutexvar_epi32(0xffff, kTransposed.all(), low),
                  second = _mm512_maskz_permutexvar_epi32(0xffff, kTransposed.all(), high);
    const __m512i left = _mm512_unpacklo_epi8(first, second), right = _mm512_unpackhi_epi8(first, second);
    ints[0] = _mm512_unpacklo_epi16(left, zero), ints[1] = _mm512_unpackhi_epi16(left, zero);
    ints[2] = _mm512_unpacklo_epi16(right, zero), ints[3] = _mm512_unpackhi_epi16(right, zero);
  }
  INLINE Bytes vector(int v) const { return levels_at<F>(ints[v], 0x2c2824200c080400u); }
};

// The 32 bytes at each of two places, as indices of two rows.
INLINE __m512i of_two_rows(const char* p, const char* other) {
  static constexpr auto kPlaces = places_of_two([](int number) { return number; });
  return _mm512_permutex2var_epi8(_mm512_maskz_loadu_epi64(0x0f, p), kPlaces.all(),
                                  _mm512_maskz_loadu_epi64(0x0f, other));
}
// Of the eight words at each of two places, what begins at the bits of indices; four are in each word, every
// kBits bits.
template <int kBits>
INLINE __m512i fields_of_two_rows(const char* p, const char* other) {
  static constexpr Places<uint16_t, 32> kWords([](int i) { return i % 4 * 2 + i / 16 + i / 4 % 2 * 32; });
  static constexpr Places<uint8_t, 64> kFrom([](int i) { return i % 4 * 16 + number_of_two(i) % 4 * kBits; });
  const __m512i longs = _mm512_permutex2var_epi16(_mm512_maskz_loadu_epi64(0x03, p), kWords.all(),
                                                  _mm512_maskz_loadu_epi64(0x03, other));
  return bits_from(longs, kFrom.all());
}
// Scales of 2 s + 1: each s has kBits bits, four are in each word of the long at p.
template <int kBits>
INLINE SubBlocks<16> scales_of_fields(const char* p) {
  static constexpr Places<uint8_t, 32> kFrom(  // of words; a bit before the field, which doubles it
      [](int i) { return i % 2 ? 0 : (i / 8 * 16 + i / 2 % 4 * kBits + 63) % 64; });
  long long fields;
  __builtin_memcpy(&fields, p, 8);
  const __m256i longs = _mm256_maskz_set1_epi64(15, fields);
  const __m256i doubled = _mm256_maskz_multishift_epi64_epi8(
      ~0u, _mm256_load_si256(reinterpret_cast<const __m256i*>(kFrom.of)), longs);
  const __m256i words =
      _mm256_ternarylogic_epi64(doubled, _mm256_set1_epi16((2 << kBits) - 2), _mm256_set1_epi16(1), 0xea);
  SubBlocks<16> sub = {};
  __builtin_memcpy(sub.scales, &words, sizeof words);
  return sub;
}
// With the lowest bits of `further` as those above eight.
INLINE Indices with_bits(__m512i bytes, __m512i further) {
  return {bytes, _mm512_test_epi8_mask(further, _mm512_set1_epi8(1)),
          _mm512_test_epi8_mask(further, _mm512_set1_epi8(2)),
          _mm512_test_epi8_mask(further, _mm512_set1_epi8(4)), further};
}

// The codes of a block without their signs, and x with them.
template <class Codes, class Signs>
struct CodesAndSigns : Codes, Signs {
  explicit INLINE CodesAndSigns(const char* p) : Codes(p), Signs(p) {}
  INLINE CodesAndSigns(Codes codes, const char* p) : Codes(codes), Signs(p) {}
  INLINE Bytes with_signs(int v, Bytes x) const {
    return (Bytes)_mm512_mask_sub_epi8((__m512i)x, Signs::negative(v), __m512i{}, (__m512i)x);
  }
  INLINE Bytes signed_codes(int v) const { return with_signs(v, Codes::vector(v)); }
};

// Of the codebook of iq1: the levels times eight with 1 added, or -1 where a sign is set; and 9 more, so that
// none is negative. F::signs has a bit for each eight values.
template <class F>
struct EightsWithOnes : Eights<F> {
  uint32_t signs;
  INLINE EightsWithOnes(Eights<F> codes, const char* p) : Eights<F>(codes), signs(F::signs(p)) {}
  INLINE Bytes vector(int v) const {
    // Three bits before each number, which makes it eight times as much.
    const uint64_t from = 0x0b09070503013f3du + 0x1010101010101010u * static_cast<unsigned>(v);
    static constexpr Places<uint8_t, 64> kTwo([](int) { return 2; });
    const __m512i numbers = bits_from(Eights<F>::words, from), times_eight = _mm512_set1_epi8(3 << 3);
    const __m512i two = _mm512_maskz_load_epi64(static_cast<__mmask8>(~signs >> 8 * v), kTwo.of);
    return (Bytes)_mm512_ternarylogic_epi64(numbers, times_eight, two, 0xea);
  }
  INLINE Bytes signed_codes(int v) const { return vector(v) - (int8_t)9; }
};

template <class F, class Row>
struct RowsOfEights {
  EightsOfTwo<F> codes;
  Row first, second;
  INLINE RowsOfEights(const char* p, const char* other)
      : codes(p, other), first(codes.first, p), second(codes.second, other) {}
};

template <class Base>
struct LookedUp : Base {
  using Stored = Base;
  static constexpr bool kSigned = false, kNegatesX = true;
  static constexpr int kZero = 0;
};
template <class F, class Base, template <class> class Signs>
struct LookedUpFours : LookedUp<Base> {
  using Reader = CodesAndSigns<Fours<F>, Signs<F>>;
};
template <class F, class Base, template <class> class Signs>
struct LookedUpEights : LookedUp<Base> {
  static constexpr bool kInTwos = true;
  using Readers = RowsOfEights<F, CodesAndSigns<Eights<F>, Signs<F>>>;
};
template <class F, class Base>
struct LookedUpOnes : Base {
  using Stored = Base;
  static constexpr const auto& kBook = kNumberedIQ1;
  static constexpr bool kSigned = false, kInTwos = true;
  static constexpr int kZero = 9, kCount = 2048;
  using Readers = RowsOfEights<F, EightsWithOnes<F>>;
};

struct LookedUpIQ2_XXS : LookedUpEights<LookedUpIQ2_XXS, IQ2_XXS, SignBytes> {
  static constexpr const auto& kBook = kNumberedIQ2_XXS;
  static constexpr int kCount = 256;
  static INLINE Indices indices(const char* p, const char* other) {  // the lower four bytes of each long
    static constexpr auto kPlaces = places_of_two([](int i) { return i / 4 * 8 + i % 4; });
    return {
        _mm512_permutex2var_epi8(_mm512_loadu_si512(p + 2), kPlaces.all(), _mm512_loadu_si512(other + 2))};
  }
  static INLINE __m512i sign_bytes(const char* p) {  // seven bits each of the upper four bytes
    return eight_signs(bits_from(_mm512_loadu_si512(p + 2), uint64_t{0x352e2720352e2720}));
  }
  static constexpr int place_of_signs(int number) { return number / 4 * 8 + number % 4; }
};

struct LookedUpIQ2_XS : LookedUpEights<LookedUpIQ2_XS, IQ2_XS, SignBytes> {
  static constexpr const auto& kBook = kNumberedIQ2_XS;
  static constexpr int kCount = 512;
  static INLINE SubBlocks<16> sub_blocks(const char* p) { return scales_of_fields<4>(p + 66); }
  static INLINE Indices indices(const char* p, const char* other) {  // the lowest nine bits of each word
    static constexpr auto kLow = places_of_two([](int i) { return 2 * i; }),
                          kHigh = places_of_two([](int i) { return 2 * i + 1; });
    const __m512i words = _mm512_loadu_si512(p + 2), of_other = _mm512_loadu_si512(other + 2);
    const __m512i high = _mm512_permutex2var_epi8(words, kHigh.all(), of_other);
    return with_bits(_mm512_permutex2var_epi8(words, kLow.all(), of_other), high);
  }
  static INLINE __m512i sign_bytes(const char* p) {
    return eight_signs(_mm512_srli_epi16(_mm512_loadu_si512(p + 2), 9));
  }
  static constexpr int place_of_signs(int number) { return 2 * number; }
};

struct LookedUpIQ2_S : LookedUpEights<LookedUpIQ2_S, IQ2_S, SignBits> {
  static constexpr const auto& kBook = kNumberedIQ2_S;
  static constexpr int kCount = 1024, kSigns = 34;
  static INLINE SubBlocks<16> sub_blocks(const char* p) { return scales_of_fields<4>(p + 74); }
  static INLINE Indices indices(const char* p, const char* other) {  // two bits of each are in a long
    static constexpr Places<uint8_t, 64> kFrom([](int i) { return 2 * number_of_two(i); });
    long long bits[2];
    __builtin_memcpy(bits, p + 66, 8);
    __builtin_memcpy(bits + 1, other + 66, 8);
    const __m512i longs = _mm512_maskz_broadcast_i64x2(0xff, _mm_set_epi64x(bits[1], bits[0]));
    return with_bits(of_two_rows(p + 2, other + 2), bits_from(longs, kFrom.all()));
  }
};

struct LookedUpIQ3_XXS : LookedUpFours<LookedUpIQ3_XXS, IQ3_XXS, SignBytes> {
  static constexpr const auto& kBook = kNumberedIQ3_XXS;
  static constexpr int kCount = 256;
  static INLINE Indices indices(const char* p) { return {_mm512_loadu_si512(p + 2)}; }
  static INLINE __m512i sign_bytes(const char* p) {  // seven bits each of ints, which are in the lower half
    return eight_signs(bits_from(_mm512_maskz_loadu_epi64(0x0f, p + 66), uint64_t{0x352e2720150e0700}));
  }
  static constexpr int place_of_signs(int number) { return number; }
};

struct LookedUpIQ3_S : LookedUpFours<LookedUpIQ3_S, IQ3_S, SignBits> {
  static constexpr const auto& kBook = kNumberedIQ3_S;
  static constexpr int kCount = 512, kSigns = 74;
  static INLINE Indices indices(const char* p) {
    __mmask64 ninth;
    __builtin_memcpy(&ninth, p + 66, 8);
    return {_mm512_loadu_si512(p + 2), ninth};
  }
};

struct LookedUpIQ1_S : LookedUpOnes<LookedUpIQ1_S, IQ1_S> {
  static INLINE Indices indices(const char* p, const char* other) {  // three bits of each, of four in a word
    return with_bits(of_two_rows(p + 2, other + 2), fields_of_two_rows<3>(p + 34, other + 34));
  }
  static INLINE uint32_t signs(const char* p) {  // the highest bit of each word, of four indices
    const __m256i words = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 34)));
    return _mm256_movepi8_mask(_mm256_srai_epi32(words, 16));
  }
};

struct LookedUpIQ1_M : LookedUpOnes<LookedUpIQ1_M, IQ1_M> {
  static INLINE SubBlocks<16> sub_blocks(const char* p) { return scales_of_fields<3>(p + 48); }
  static INLINE Indices indices(const char* p, const char* other) {  // three bits of each nibble
    return with_bits(of_two_rows(p, other), fields_of_two_rows<4>(p + 32, other + 32));
  }
  static INLINE uint32_t signs(const char* p) {  // the highest bit of each nibble
    const __m256i two = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 32)));
    return _mm256_movepi8_mask(_mm256_or_si256(_mm256_slli_epi16(two, 4), _mm256_slli_epi16(two, 8)));
  }
};

// The digits of tq1_0: of each byte, four of two bits each, and the fifth. A vector has digits of eight bytes
// in each long.
struct FiveDigits {
  __m512i four, fifth;
  explicit INLINE FiveDigits(const char* p) {
    const Indices bytes = {_mm512_maskz_loadu_epi8((1ull << 52) - 1, p)};
    four = bytes_at<256>(kDigits.four, bytes), fifth = bytes_at<256>(kDigits.fifth, bytes);
  }
  // Of value i of a block: the byte it is in, and its digit.
  static constexpr int byte_of(int i) { return i < 160 ? i % 32 : i < 240 ? 32 + i % 16 : 48 + i % 4; }
  static constexpr int digit_of(int i) { return i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4; }
  static constexpr Places<uint64_t, 8> longs_of(int vector) {
    return Places<uint64_t, 8>([=](int i) {
      const int value = vector * 64 + 8 * i;
      return byte_of(value) / 8 + digit_of(value) / 4 * 8;
    });
  }
  static constexpr Places<uint8_t, 64> bits_of(int vector) {
    return Places<uint8_t, 64>([=](int i) {
      const int value = vector * 64 + i;
      return byte_of(value) % 8 * 8 + digit_of(value) % 4 * 2;
    });
  }
  INLINE Bytes vector(int v) const {
    static constexpr Places<uint64_t, 8> kLongs[] = {longs_of(0), longs_of(1), longs_of(2), longs_of(3)};
    static constexpr Places<uint8_t, 64> kFrom[] = {bits_of(0), bits_of(1), bits_of(2), bits_of(3)};
    const __m512i longs = _mm512_permutex2var_epi64(four, kLongs[v].all(), fifth);
    return (Bytes)bits_from(longs, kFrom[v].all()) & (int8_t)3;
  }
  INLINE Bytes signed_codes(int v) const { return vector(v) - (int8_t)1; }
};
struct LookedUpTQ1_0 : DigitsOfTQ1_0 {
  using Stored = TQ1_0;
  using Reader = FiveDigits;
};

// The codes of a row in order, in memory: those of LANES rows need all registers while they are transposed.
struct RowOfCodes {
  alignas(64) int8_t codes[256];
  INLINE Bytes vector(int v) const { return load_bytes(codes + v * kStep); }
  template <class Reader>
  INLINE void set(const Reader& reader) {
#pragma GCC unroll 4  // makes the number a constant
    for (int v = 0; v < 256 / kStep; ++v)
      *reinterpret_cast<BytesInMemory*>(codes + v * kStep) = reader.signed_codes(v);
  }
};
template <class L>
INLINE void set_two(RowOfCodes* to, const char* p, const char* other) {
  if constexpr (L::kInTwos) {
    const typename L::Readers both(p, other);
    to[0].set(both.first), to[1].set(both.second);
  } else {
    to[0].set(typename L::Reader(p)), to[1].set(typename L::Reader(other));
  }
}

template <class L, class F = typename L::Stored>
void unpack_by_lookups(PanelOf<F>* panel, const LinearPart& part, int64_t n, int64_t b, int64_t next) {
  const char* w[LANES];
  set_rows(w, part, n);
  prefetch_rows<F>(part, next, b);
  RowOfCodes codes[LANES];
  for (int r = 0; r < LANES; r += 2) set_two<L>(codes + r, w[r] + b * F::kBytes, w[r + 1] + b * F::kBytes);
  set_codes<F>(panel, codes, Lanes{});
  unpack_scales<F>(panel, w, b * F::kBytes);
}

template <class L>
void multiply_by_lookups(const LinearPart& part) {
  switch (part.packed_rows()) {
    case 1:
      return few_rows256<L, 1>(part);
    case 2:
      return few_rows256<L, 2>(part);
    case 3:
      return few_rows256<L, 3>(part);
    default:
      return by_panels256<ArithmeticOf<typename L::Stored>>(part, unpack_by_lookups<L>);
  }
}

// The kernel of a format with lookups, or another one.
INLINE LinearKernel* kernel_by_lookups(Format format, LinearKernel* otherwise) {
  switch (format) {
    case kIQ2_XXS:
      return multiply_by_lookups<LookedUpIQ2_XXS>;
    case kIQ2_XS:
      return multiply_by_lookups<LookedUpIQ2_XS>;
    case kIQ2_S:
      return multiply_by_lookups<LookedUpIQ2_S>;
    case kIQ1_S:
      return multiply_by_lookups<LookedUpIQ1_S>;
    case kIQ1_M:
      return multiply_by_lookups<LookedUpIQ1_M>;
    case kIQ3_XXS:
      return multiply_by_lookups<LookedUpIQ3_XXS>;
    case kIQ3_S:
      return multiply_by_lookups<LookedUpIQ3_S>;
    case kTQ1_0:
      return multiply_by_lookups<LookedUpTQ1_0>;
    default:
      return otherwise;
  }
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
