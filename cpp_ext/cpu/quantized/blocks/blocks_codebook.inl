// Formats of blocks of 256 codes (blocks_codes.inl) that are vectors of a codebook: iq1, iq2, iq3.
//
// Products with one or two rows of x read a block's codes in registers. What is small, the indices and the
// signs of the whole block, is found first, in vectors. Then each index loads its vector from the codebook,
// and x gets the signs: the codes stay positive.
#ifndef AIRLLM_BLOCKS_CODEBOOK_INL
#define AIRLLM_BLOCKS_CODEBOOK_INL
#include "blocks_codes.inl"
#include "codebooks.h"

namespace cpu::ISA {
namespace {
namespace stored {

// ---- vectors of 4 or 8 positive values, with signs

constexpr uint64_t kEachByte = 0x0101010101010101u;

template <class Base>
struct BesideSigns;
template <class Base>
struct FromZero;

// The block's float16 is its first number; kDivisor of its parts are a step. A sub-block has 2 s + 1 steps; a
// format has s of eight sub-blocks, scale_bits(block, i). Of eight values, it has the index(block, number) of
// their vector in kBook, and signs(block, number), a byte of ones for each negative value.
template <class F, Format kFormat>
struct CodebookBlock : BlockOfCodes<F, kFormat> {
  using OfFewRows = BesideSigns<F>;
  static INLINE float step(const uint8_t* block) { return half_at(block) * (1.f / F::kDivisor); }
  static INLINE auto sub_blocks(const char* p) {
    SubBlocks<F::kUnit> sub = {};
    for (int i = 0; i < sub.kWords; ++i)
      sub.scales[i] = F::scale_bits(reinterpret_cast<const uint8_t*>(p), i) * (int16_t)2 + (int16_t)1;
    return sub;
  }
  static INLINE int sub_scale(const uint8_t* block, int j) {
    return 2 * F::scale_bits(block, j / 8)[j % 8] + 1;
  }
  static INLINE Sixteen piece(const uint8_t* block, int p) {
    const auto& words = F::kBook.words;
    return (Sixteen)TwoLongs{words[F::index(block, 2 * p)], words[F::index(block, 2 * p + 1)]};
  }
  static INLINE Sixteen rest(const uint8_t* block, int p) {
    return (Sixteen)TwoLongs{F::signs(block, 2 * p), F::signs(block, 2 * p + 1)};
  }
  template <class V>
  static INLINE V code(V values, V negative) {
    return (values ^ negative) - negative;
  }
};

// As products of a few rows take them: without signs, which x gets.
template <class F>
struct CodesBesideSigns {
  typename F::Parts parts;
  explicit INLINE CodesBesideSigns(const char* p) : parts(reinterpret_cast<const uint8_t*>(p)) {}
  INLINE Bytes vector(int v) const { return parts.pieces(v); }
  INLINE Bytes with_signs(int v, Bytes x) const { return F::code(x, parts.rest(v)); }
};
template <class Base>
struct BesideSigns : Base {
  static constexpr bool kSigned = false, kNegatesX = true;
  static constexpr int kZero = 0;
  using Reader = CodesBesideSigns<Base>;
};

// The vectors of a codebook at the indices index(number), as those of the v-th vector of values.
template <class F, class Index>
INLINE Bytes looked_up(int v, const Index& index) {
  const auto& words = F::kBook.words;
  constexpr int kWords = kStep / static_cast<int>(sizeof words[0]);
  return bytes_of_words([&](int i) { return words[index(v * kWords + i)]; });
}
// With indices that are stored as bytes.
template <class F>
struct StoredIndices : PartsOfBlock<F> {
  explicit INLINE StoredIndices(const uint8_t* block) : PartsOfBlock<F>(block) {}
  INLINE Bytes pieces(int v) const {
    return looked_up<F>(v, [&](int number) { return F::index(this->block, number); });
  }
};
// With others, found eight at a time by F::indices(block, i).
template <class F>
struct FoundIndices : PartsOfBlock<F> {
  static constexpr int kIndices = 256 / static_cast<int>(sizeof F::kBook.words[0]);
  alignas(16) uint16_t index[kIndices];
  explicit INLINE FoundIndices(const uint8_t* block) : PartsOfBlock<F>(block) {
    for (int i = 0; i < kIndices / 8; ++i)
      *reinterpret_cast<EightWordsInMemory*>(index + 8 * i) = F::indices(block, i);
    __asm__("" : "+m"(index));  // else GCC takes each from a vector, which is slower than a load
  }
  INLINE Bytes pieces(int v) const {
    return looked_up<F>(v, [&](int number) { return index[number]; });
  }
};

// With the signs as bits, from byte kSigns on.
template <class F, class Base>
struct WithSignBits : Base {
  explicit INLINE WithSignBits(const uint8_t* block) : Base(block) {}
  INLINE Bytes rest(int v) const {
    return ones_of_bits(reinterpret_cast<const char*>(this->block) + F::kSigns + v * kStep / 8);
  }
};

// With seven of each eight signs stored: F::sevens(block) are 32 bytes with these.
typedef uint8_t ThirtyTwo __attribute__((vector_size(32)));
typedef uint16_t SixteenWords __attribute__((vector_size(32)));
typedef uint32_t EightInts __attribute__((vector_size(32)));
template <class V>
INLINE V load_all(const uint8_t* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class F, class Base>
struct WithSevens : Base {
  ThirtyTwo signs;
  explicit INLINE WithSevens(const uint8_t* block) : Base(block) {
    signs = with_eighth(F::sevens(block));
    __asm__("" : "+m"(signs));  // loads repeat them faster than shuffles
  }
  // The number of ones is even. Shifts move bits of the next lower byte in, but never as far as the highest.
  static INLINE ThirtyTwo with_eighth(const ThirtyTwo& sevens) {
    SixteenWords ones = (SixteenWords)sevens;
    ones ^= ones << 4;
    ones ^= ones << 2;
    ones ^= ones << 1;
    return sevens | ((ThirtyTwo)ones & (uint8_t)128);
  }
  INLINE Bytes rest(int v) const {
    return ones_of_bits(reinterpret_cast<const char*>(&signs) + v * kStep / 8);
  }
};
// The four fields of seven bits of each int.
INLINE ThirtyTwo fields_of_seven(const EightInts& v) {
  return (ThirtyTwo)((v & 0x7f) | (v << 1 & 0x7f00) | (v << 2 & 0x7f0000) | (v << 3 & 0x7f000000));
}

// The lower eight bits of eight indices.
INLINE EightWords low_indices(const uint8_t* p) {
  return words_at(reinterpret_cast<const char*>(p)) & (int16_t)255;
}
// Two words, each four times. Multiplied by powers of two, each has another one of its fields at the same
// place: four of three bits from bit 9 on, or of four bits from bit 12 on.
INLINE EightUnsigned each_four_times(const uint8_t* p) {
  constexpr uint64_t kEachWord = 0x0001000100010001u;
  return (EightUnsigned)TwoLongs{kEachWord * pair_at(p), kEachWord * pair_at(p + 2)};
}
constexpr EightUnsigned kFieldsOfThree = {512, 64, 8, 1, 512, 64, 8, 1},
                        kFieldsOfFour = {4096, 256, 16, 1, 4096, 256, 16, 1};
INLINE EightWords eight_nibbles(const uint8_t* p) { return words_of(bytes_of_fields<4>(four_at(p))); }

// The highest four bits of eight uint64, and of eight uint32.
INLINE EightWords highest_of_longs(const uint8_t* p) {
  TwoLongs all = {};
  for (int i = 0; i < 4; ++i) all |= (TwoLongs)load_sixteen(p + 16 * i) >> 60 << 16 * i;
  return __builtin_shufflevector((EightWords)all, (EightWords)all, 0, 4, 1, 5, 2, 6, 3, 7);
}
INLINE EightWords highest_of_words(const uint8_t* p) {
  const FourUnsigned low = (FourUnsigned)load_sixteen(p) >> 28,
                     high = (FourUnsigned)load_sixteen(p + 16) >> 28, all = low | high << 16;
  return __builtin_shufflevector((EightWords)all, (EightWords)all, 0, 2, 4, 6, 1, 3, 5, 7);
}

struct IQ2_XXS : CodebookBlock<IQ2_XXS, kIQ2_XXS> {
  static constexpr int kUnit = 32, kDivisor = 8, kLargest = 43;
  static constexpr const auto& kBook = kBookIQ2_XXS;
  using Parts = WithSevens<IQ2_XXS, StoredIndices<IQ2_XXS>>;
  static INLINE EightWords scale_bits(const uint8_t* block, int) { return highest_of_longs(block + 2); }
  static INLINE int index(const uint8_t* block, int number) { return block[2 + number / 4 * 8 + number % 4]; }
  static INLINE uint64_t signs(const uint8_t* block, int number) {
    return kSignMasks.of_seven[four_at(block + 6 + number / 4 * 8) >> number % 4 * 7 & 127];
  }
  static INLINE ThirtyTwo sevens(const uint8_t* block) {  // in the upper half of each long
    const EightInts first = load_all<EightInts>(block + 2), second = load_all<EightInts>(block + 34);
    return fields_of_seven(__builtin_shufflevector(first, second, 1, 3, 5, 7, 9, 11, 13, 15));
  }
};

struct IQ2_XS : CodebookBlock<IQ2_XS, kIQ2_XS> {
  static constexpr int kUnit = 16, kDivisor = 8, kLargest = 43;
  static constexpr const auto& kBook = kBookIQ2_XS;
  using Parts = WithSevens<IQ2_XS, FoundIndices<IQ2_XS>>;
  static INLINE EightWords scale_bits(const uint8_t* block, int i) {
    return eight_nibbles(block + 66 + 4 * i);
  }
  static INLINE int index(const uint8_t* block, int number) { return pair_at(block + 2 + 2 * number) & 511; }
  static INLINE uint64_t signs(const uint8_t* block, int number) {
    return kSignMasks.of_seven[pair_at(block + 2 + 2 * number) >> 9];
  }
  static INLINE EightWords indices(const uint8_t* block, int i) {
    return load_words(block + 2 + 16 * i) & (int16_t)511;
  }
  static INLINE ThirtyTwo sevens(const uint8_t* block) {  // in the upper bits of each word
    const ThirtyTwo first = (ThirtyTwo)(load_all<SixteenWords>(block + 2) >> 9),
                    second = (ThirtyTwo)(load_all<SixteenWords>(block + 34) >> 9);
    return __builtin_shufflevector(first, second, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                   32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62);
  }
};

struct IQ2_S : CodebookBlock<IQ2_S, kIQ2_S> {
  static constexpr int kUnit = 16, kDivisor = 8, kLargest = 43, kSigns = 34;
  static constexpr const auto& kBook = kBookIQ2_S;
  using Parts = WithSignBits<IQ2_S, FoundIndices<IQ2_S>>;
  static INLINE EightWords scale_bits(const uint8_t* block, int i) {
    return eight_nibbles(block + 74 + 4 * i);
  }
  static INLINE int index(const uint8_t* block, int number) {
    return block[2 + number] | (block[66 + number / 4] >> number % 4 * 2 & 3) << 8;
  }
  static INLINE EightWords indices(const uint8_t* block, int i) {  // two bits of each are in a word
    const EightUnsigned high = (EightUnsigned{} + static_cast<uint16_t>(pair_at(block + 66 + 2 * i))) *
                               EightUnsigned{16384, 4096, 1024, 256, 64, 16, 4, 1};
    return low_indices(block + 2 + 8 * i) | (EightWords)(high >> 6 & (uint16_t)768);
  }
  static INLINE uint64_t signs(const uint8_t* block, int number) {
    return kSignMasks.of_eight[block[kSigns + number]];
  }
};

// With vectors of four values.
template <class F, Format kFormat>
struct CodebookOfFours : CodebookBlock<F, kFormat> {
  static INLINE Sixteen piece(const uint8_t* block, int p) {
    const auto& words = F::kBook.words;
    const auto index = [=](int i) { return F::index(block, 4 * p + i); };
    return (Sixteen)FourUnsigned{words[index(0)], words[index(1)], words[index(2)], words[index(3)]};
  }
};

struct IQ3_XXS : CodebookOfFours<IQ3_XXS, kIQ3_XXS> {
  static constexpr int kUnit = 32, kDivisor = 4, kLargest = 62;
  static constexpr const auto& kBook = kBookIQ3_XXS;
  using Parts = WithSevens<IQ3_XXS, StoredIndices<IQ3_XXS>>;
  static INLINE EightWords scale_bits(const uint8_t* block, int) { return highest_of_words(block + 66); }
  static INLINE int index(const uint8_t* block, int number) { return block[2 + number]; }
  static INLINE uint64_t signs(const uint8_t* block, int number) {
    return kSignMasks.of_seven[four_at(block + 66 + number / 4 * 4) >> number % 4 * 7 & 127];
  }
  static INLINE ThirtyTwo sevens(const uint8_t* block) {
    return fields_of_seven(load_all<EightInts>(block + 66));
  }
};

struct IQ3_S : CodebookOfFours<IQ3_S, kIQ3_S> {
  static constexpr int kUnit = 32, kDivisor = 1, kLargest = 15, kSigns = 74;
  static constexpr const auto& kBook = kBookIQ3_S;
  using Parts = WithSignBits<IQ3_S, FoundIndices<IQ3_S>>;
  static INLINE EightWords scale_bits(const uint8_t* block, int) { return eight_nibbles(block + 106); }
  static INLINE int index(const uint8_t* block, int number) {
    return block[2 + number] | (block[66 + number / 8] >> number % 8 & 1) << 8;
  }
  static INLINE EightWords indices(const uint8_t* block, int i) {
    const EightUnsigned ninth =
        (EightUnsigned{} + block[66 + i]) * EightUnsigned{256, 128, 64, 32, 16, 8, 4, 2};
    return low_indices(block + 2 + 8 * i) | (EightWords)(ninth & (uint16_t)256);
  }
  static INLINE uint64_t signs(const uint8_t* block, int number) {
    return kSignMasks.of_eight[block[kSigns + number]];
  }
};

// ---- iq1: vectors of -8, 0 and 8 eighths, to which 1 is added, or -1 where a bit is set

template <class F, Format kFormat>
struct CodebookOfSigns : CodebookBlock<F, kFormat> {
  static constexpr int kDivisor = 8, kLargest = 9;
  static constexpr const auto& kBook = kBookIQ1;
  using OfFewRows = FromZero<F>;
  template <class V>
  static INLINE V code(V values, V added) {
    return values + added;
  }
};

// The bytes that are added to each eight values, plus kMore; F::added(block, i) are 16 of them.
template <class F, int kMore = 0>
struct WithAdded : FoundIndices<F> {
  Sixteen added[2];
  explicit INLINE WithAdded(const uint8_t* block) : FoundIndices<F>(block) {
    for (int i = 0; i < 2; ++i) added[i] = F::added(block, i) + (int8_t)kMore;
    __asm__("" : "+m"(added));
  }
  INLINE Bytes rest(int v) const {
    return each_eight_times(reinterpret_cast<const char*>(added) + v * kStep / 8);
  }
};
// As products of a few rows take them: with 9 more, so that none is negative.
template <class Base>
struct FromZero : Base {
  static constexpr bool kSigned = false;
  static constexpr int kZero = 9, kLargest = 18;
  using Parts = WithAdded<Base, kZero>;
  using Reader = CodesOfPieces<FromZero>;
};

// Of bytes whose highest bit is a sign.
INLINE Sixteen ones_with_signs(Sixteen bytes) { return (bytes < 0) | (int8_t)1; }
INLINE uint64_t eight_added(uint32_t negative) { return negative ? ~uint64_t{0} : kEachByte; }

struct IQ1_S : CodebookOfSigns<IQ1_S, kIQ1_S> {
  static constexpr int kUnit = 32;
  using Parts = WithAdded<IQ1_S>;
  static INLINE EightWords scale_bits(const uint8_t* block, int) {
    return (EightWords)((EightUnsigned)load_sixteen(block + 34) >> 12 & (uint16_t)7);
  }
  static INLINE int index(const uint8_t* block, int number) {
    return block[2 + number] | (pair_at(block + 34 + number / 4 * 2) >> number % 4 * 3 & 7) << 8;
  }
  static INLINE EightWords indices(const uint8_t* block, int i) {  // three bits of each, of four in a word
    const EightUnsigned high = each_four_times(block + 34 + 4 * i) * kFieldsOfThree;
    return low_indices(block + 2 + 8 * i) | (EightWords)(high >> 1 & (uint16_t)0x700);
  }
  static INLINE Sixteen added(const uint8_t* block, int i) {  // a sign for each four vectors
    const Sixteen all = load_sixteen(block + 34);
    return ones_with_signs(
        i ? __builtin_shufflevector(all, all, 9, 9, 9, 9, 11, 11, 11, 11, 13, 13, 13, 13, 15, 15, 15, 15)
          : __builtin_shufflevector(all, all, 1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7));
  }
  static INLINE Sixteen rest(const uint8_t* block, int p) {
    return Sixteen{} + static_cast<int8_t>(1 - 2 * (block[35 + p / 2 * 2] >> 7));
  }
};

struct IQ1_M : CodebookOfSigns<IQ1_M, kIQ1_M> {
  static constexpr int kUnit = 16;
  using Parts = WithAdded<IQ1_M>;
  static INLINE float step(const uint8_t* block) {  // a nibble of the float16 is above four scales
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= (pair_at(block + 48 + 2 * i) >> 12) << 4 * i;
    const uint8_t half[2] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
    return half_at(half) * (1.f / kDivisor);
  }
  static INLINE EightWords scale_bits(const uint8_t* block, int i) {  // four of three bits in each word
    return (EightWords)(each_four_times(block + 48 + 4 * i) * kFieldsOfThree >> 9 & (uint16_t)7);
  }
  static INLINE int index(const uint8_t* block, int number) {
    return block[number] | (nibble_at(block + 32, number) & 7) << 8;
  }
  static INLINE EightWords indices(const uint8_t* block, int i) {  // three bits of each nibble
    const EightUnsigned nibbles = each_four_times(block + 32 + 4 * i) * kFieldsOfFour;
    return low_indices(block + 8 * i) | (EightWords)(nibbles >> 4 & (uint16_t)0x700);
  }
  static INLINE Sixteen added(const uint8_t* block, int i) {  // the highest bit of each nibble
    const Sixteen odd = load_sixteen(block + 32), even = (Sixteen)((EightUnsigned)odd << 4);
    return ones_with_signs(
        i ? __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
          : __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
  }
  static INLINE uint64_t signs(const uint8_t* block, int number) {
    return eight_added(nibble_at(block + 32, number) >> 3);
  }
};

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
