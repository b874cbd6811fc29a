// Interleaved weights: the same bytes as blocks, in another order. The blocks of 16 rows, a band, lie
// together, and what a kernel loads for 16 rows is contiguous, so that each row has a lane of a vector. A
// product then needs no shuffles, and reads memory in order.
//
// A block has some whole words of 32 bits; the rest, before or after them, are 16-bit numbers, or one byte.
// A band has the words of all its blocks first: for each block, for each of its words, that word of each row.
// Then it has the rest of all its blocks in the same way.
#pragma once
#include "formats.h"

namespace cpu {

constexpr int64_t kBand = 16;  // rows

// The words of a block: the first one begins at this byte. No words: the format is not interleaved.
struct BlockWords {
  int first, count;
};

constexpr BlockWords words_of(Format format) {
  switch (format) {
    case kQ8_0: return {2, 8};
    case kQ4_0: return {2, 4};
    case kQ4_1: return {4, 4};
    case kQ5_0: return {2, 5};
    case kQ5_1: return {4, 5};
    case kQ2_K: return {0, 20};
    case kQ3_K: return {0, 27};
    case kQ4_K: return {4, 35};
    case kQ5_K: return {4, 43};
    case kQ6_K: return {0, 52};
    case kIQ4_NL: return {2, 4};
    case kIQ4_XS: return {4, 33};
    case kMXFP4: return {1, 4};
    case kTQ2_0: return {0, 16};
    default: return {0, 0};
  }
}

// The bytes of a block that are not words, the byte at which they begin, and the bytes of each number.
constexpr int rest_bytes(Format format) { return kBlocks[format].bytes - 4 * words_of(format).count; }
constexpr int rest_first(Format format) { return words_of(format).first ? 0 : 4 * words_of(format).count; }
constexpr int rest_width(Format format) { return rest_bytes(format) % 2 ? 1 : 2; }

// Whether a weight (n, k) of this format can be interleaved.
constexpr bool can_interleave(Format format, int64_t n, int64_t k) {
  return words_of(format).count && n % kBand == 0 && k % kBlocks[format].values == 0;
}

// Copies the blocks of one band between a weight as stored and an interleaved one. `stored` is the first row.
template <class Move>
void each_piece(Format format, int64_t blocks, const Move& move) {
  const BlockWords words = words_of(format);
  const int bytes = kBlocks[format].bytes, rest = rest_bytes(format), width = rest_width(format);
  const int64_t row = blocks * bytes, rest_at = blocks * words.count * 4 * kBand;
  for (int64_t b = 0; b < blocks; ++b) {
    for (int i = 0; i < words.count; ++i)
      for (int64_t r = 0; r < kBand; ++r)
        move(((b * words.count + i) * kBand + r) * 4, r * row + b * bytes + words.first + 4 * i, 4);
    for (int i = 0; i < rest; i += width)
      for (int64_t r = 0; r < kBand; ++r)
        move(rest_at + (b * rest + i) * kBand + r * width, r * row + b * bytes + rest_first(format) + i,
             width);
  }
}

inline void interleave_band(Format format, char* to, const char* stored, int64_t k) {
  each_piece(format, k / kBlocks[format].values, [=](int64_t place, int64_t at, int bytes) {
    bytes == 4   ? __builtin_memcpy(to + place, stored + at, 4)
    : bytes == 2 ? __builtin_memcpy(to + place, stored + at, 2)
                 : __builtin_memcpy(to + place, stored + at, 1);
  });
}

inline void deinterleave_band(Format format, char* to, const char* band, int64_t k) {
  each_piece(format, k / kBlocks[format].values, [=](int64_t place, int64_t at, int bytes) {
    bytes == 4   ? __builtin_memcpy(to + at, band + place, 4)
    : bytes == 2 ? __builtin_memcpy(to + at, band + place, 2)
                 : __builtin_memcpy(to + at, band + place, 1);
  });
}

}  // namespace cpu
