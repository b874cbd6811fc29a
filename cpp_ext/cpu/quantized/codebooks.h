// The codebooks of the formats iq1, iq2 and iq3 and their signs, as words that hold a vector: the compiler
// makes these tables. All instruction sets share them.
#pragma once
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

template <int kLevels, int kLength, int kCount>
constexpr Codebook<kLength, kCount> unpacked(const StoredCodebook<kLevels, kLength, kCount>& stored) {
  Codebook<kLength, kCount> book = {};
  int found = 0;
  for (int number = 0; number < power(kLevels, kLength); ++number)
    if (stored.members[number / 64] >> number % 64 & 1)
      book.words[found++] = codebook_word<kLevels, kLength>(stored.levels, number);
  return book;
}

inline constexpr auto kBookIQ2_XXS = unpacked(kStoredIQ2_XXS);
inline constexpr auto kBookIQ2_XS = unpacked(kStoredIQ2_XS);
inline constexpr auto kBookIQ2_S = unpacked(kStoredIQ2_S);
inline constexpr auto kBookIQ3_XXS = unpacked(kStoredIQ3_XXS);
inline constexpr auto kBookIQ3_S = unpacked(kStoredIQ3_S);
inline constexpr auto kBookIQ1 = unpacked(kStoredIQ1);

// For eight sign bits, a byte of ones for each one.
struct SignMasks {
  uint64_t of_eight[256];
  uint64_t of_seven[128];  // the eighth bit makes the number of ones even
};

constexpr SignMasks sign_masks() {
  SignMasks masks = {};
  for (int bits = 0; bits < 256; ++bits) {
    int ones = 0;
    for (int i = 0; i < 8; ++i) {
      ones += bits >> i & 1;
      masks.of_eight[bits] |= static_cast<uint64_t>(bits >> i & 1) * 0xff << 8 * i;
    }
    if (ones % 2 == 0) masks.of_seven[bits & 127] = masks.of_eight[bits];
  }
  return masks;
}

inline constexpr SignMasks kSignMasks = sign_masks();

}  // namespace cpu
