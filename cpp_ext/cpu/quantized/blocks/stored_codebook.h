// How a codebook is stored: airllm/formats/codebooks.py says what it is.
#pragma once
#include <cstdint>

namespace cpu {

constexpr int power(int base, int exponent) { return exponent ? base * power(base, exponent - 1) : 1; }

// kCount vectors of kLength values, each one of kLevels: a bit for each number that such a vector may have.
template <int kLevels, int kLength, int kCount>
struct StoredCodebook {
  int8_t levels[kLevels];
  uint64_t members[(power(kLevels, kLength) + 63) / 64];
};

}  // namespace cpu
