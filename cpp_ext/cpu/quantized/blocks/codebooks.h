// The codebooks of the formats iq1, iq2 and iq3 and their signs, as words that hold a vector: the compiler
// makes these tables. All instruction sets share them.
#pragma once
#include <cstddef>
#include <type_traits>

#include "codebook_members.h"

namespace cpu {

// A vector of 4 or 8 values, the first one in the lowest byte.
template <int kLength>
using CodebookWord = std::conditional_t<kLength == 8, uint64_t, uint32_t>;

template <int kLength, int kCount>
struct Codebook {
  CodebookWord<kLength> words[kCount];
};

template <int kLevels, int kLength>
constexpr CodebookWord<kLength> codebook_word(const int8_t (&levels)[kLevels], int number) {
  CodebookWord<kLength> word = 0;
  for (int i = 0; i < kLength; ++i, number /= kLevels)
    word |= CodebookWord<kLength>{static_cast<uint8_t>(levels[number % kLevels])} << 8 * i;
  return word;
}

// Calls each(i, number) for the vectors of a codebook in order.
template <int kLevels, int kLength, int kCount, class Each>
constexpr void each_vector(const StoredCodebook<kLevels, kLength, kCount>& stored, const Each& each) {
  int i = 0;
  for (int number = 0; number < power(kLevels, kLength); ++number)
    if (stored.members[number / 64] >> number % 64 & 1) each(i++, number);
}

template <int kLevels, int kLength, int kCount>
constexpr Codebook<kLength, kCount> unpacked(const StoredCodebook<kLevels, kLength, kCount>& stored) {
  Codebook<kLength, kCount> book = {};
  each_vector(stored, [&](int i, int number) {
    book.words[i] = codebook_word<kLevels, kLength>(stored.levels, number);
  });
  return book;
}

inline constexpr auto kBookIQ2_XXS = unpacked(kStoredIQ2_XXS);
inline constexpr auto kBookIQ2_XS = unpacked(kStoredIQ2_XS);
inline constexpr auto kBookIQ2_S = unpacked(kStoredIQ2_S);
inline constexpr auto kBookIQ3_XXS = unpacked(kStoredIQ3_XXS);
inline constexpr auto kBookIQ3_S = unpacked(kStoredIQ3_S);
inline constexpr auto kBookIQ1 = unpacked(kStoredIQ1);

// The same vectors as 16 bits each, in two planes of bytes: for each value the number of its level, in 2 bits
// of eight values or 4 bits of four. `levels` has the level at each place of 6 bits whose lowest are such a
// number.
template <int kCount>
struct NumberedCodebook {
  alignas(64) uint8_t low[kCount], high[kCount];
  alignas(64) int8_t levels[64];
};

template <int kLevels, int kLength, int kCount>
constexpr NumberedCodebook<kCount> numbered(const StoredCodebook<kLevels, kLength, kCount>& stored) {
  constexpr int kBits = 16 / kLength;
  NumberedCodebook<kCount> book = {};
  each_vector(stored, [&](int i, int number) {
    int word = 0;
    for (int value = 0; value < kLength; ++value, number /= kLevels)
      word |= number % kLevels << kBits * value;
    book.low[i] = static_cast<uint8_t>(word);
    book.high[i] = static_cast<uint8_t>(word >> 8);
  });
  for (int i = 0; i < 64; ++i)
    if (const int level = i & ((1 << kBits) - 1); level < kLevels) book.levels[i] = stored.levels[level];
  return book;
}

// Where the bytes of a table that rises change. Each of 128 parts of the table has at most one step: the
// bytes up to an index with the lowest bits `last` are `before`, the others `after`.
struct Steps {
  alignas(64) uint8_t before[128], after[128], last[128];
};

template <std::size_t kCount>
constexpr Steps steps(const uint8_t (&rising)[kCount]) {
  constexpr int kPart = kCount / 128;
  Steps steps = {};
  for (int part = 0; part < 128; ++part) {
    const uint8_t* const bytes = rising + kPart * part;
    steps.before[part] = bytes[0], steps.after[part] = bytes[kPart - 1];
    int last = 0;
    while (last + 1 < kPart && bytes[last + 1] == bytes[0]) ++last;
    for (int i = last + 1; i < kPart; ++i)
      if (bytes[i] != bytes[kPart - 1]) throw "a part has two steps";  // the compiler refuses the table
    steps.last[part] = static_cast<uint8_t>(kPart * part + last);
  }
  return steps;
}

inline constexpr auto kNumberedIQ2_XXS = numbered(kStoredIQ2_XXS);
inline constexpr auto kNumberedIQ2_XS = numbered(kStoredIQ2_XS);
inline constexpr auto kNumberedIQ2_S = numbered(kStoredIQ2_S);
inline constexpr auto kNumberedIQ3_XXS = numbered(kStoredIQ3_XXS);
inline constexpr auto kNumberedIQ3_S = numbered(kStoredIQ3_S);
inline constexpr auto kNumberedIQ1 = numbered(kStoredIQ1);

// The digits to base 3 of the bytes of tq1_0, fractions of 256: four of two bits each, and the fifth.
struct DigitsOfBytes {
  alignas(64) uint8_t four[256], fifth[256];
};
constexpr DigitsOfBytes digits_of_bytes() {
  DigitsOfBytes digits = {};
  for (int byte = 0; byte < 256; ++byte) {
    int rest = byte;
    for (int i = 0; i < 4; ++i, rest = 3 * rest & 255)
      digits.four[byte] = static_cast<uint8_t>(digits.four[byte] | 3 * rest >> 8 << 2 * i);
    digits.fifth[byte] = static_cast<uint8_t>(3 * rest >> 8);
  }
  return digits;
}
inline constexpr DigitsOfBytes kDigits = digits_of_bytes();

// Seven signs with the eighth, which makes the number of ones even.
struct EightSigns {
  alignas(64) uint8_t of_seven[128];
};
constexpr EightSigns eight_signs() {
  EightSigns signs = {};
  for (int bits = 0; bits < 128; ++bits) {
    int ones = 0;
    for (int i = 0; i < 7; ++i) ones += bits >> i & 1;
    signs.of_seven[bits] = static_cast<uint8_t>(bits | ones % 2 << 7);
  }
  return signs;
}
inline constexpr EightSigns kEightSigns = eight_signs();

// For eight sign bits, a byte of ones for each one.
struct SignMasks {
  uint64_t of_eight[256];
  uint64_t of_seven[128];  // with the eighth
};

constexpr SignMasks sign_masks() {
  SignMasks masks = {};
  for (int bits = 0; bits < 256; ++bits)
    for (int i = 0; i < 8; ++i) masks.of_eight[bits] |= static_cast<uint64_t>(bits >> i & 1) * 0xff << 8 * i;
  for (int bits = 0; bits < 128; ++bits) masks.of_seven[bits] = masks.of_eight[kEightSigns.of_seven[bits]];
  return masks;
}

inline constexpr SignMasks kSignMasks = sign_masks();

}  // namespace cpu
