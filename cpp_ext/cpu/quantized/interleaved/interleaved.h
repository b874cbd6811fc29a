// Interleaved weights: the same bytes as blocks, in another order. The blocks of 16 rows, a band, lie
// together, and what a kernel loads for 16 rows is contiguous, so that each row has a lane of a vector. A
// product then needs no shuffles, and reads memory in order.
//
// A block has some whole words of 32 bits; the rest, before or after them, are 16-bit numbers, or one byte.
// A group of blocks has its words first: for each block, for each of its words, that word of each row. Then
// it has the rest of its blocks in the same way. Groups have as many blocks as make the rest whole cache
// lines, so that the words of every group begin with a line. The last group of a band may have fewer.
#pragma once
#include "../formats.h"
#include "../gemv/gemv.h"

namespace cpu {

constexpr int64_t kBand = 16;  // rows

// The words of a block: the first one begins at this byte. No words: the format is not interleaved.
struct BlockWords {
  int first, count;
};

constexpr BlockWords words_of(Format format) {
  switch (format) {
    case kQ8_0:
      return {2, 8};
    case kQ4_0:
      return {2, 4};
    case kQ4_1:
      return {4, 4};
    case kQ5_0:
      return {2, 5};
    case kQ5_1:
      return {4, 5};
    case kQ2_K:
      return {0, 20};
    case kQ3_K:
      return {0, 27};
    case kQ4_K:
      return {4, 35};
    case kQ5_K:
      return {4, 43};
    case kQ6_K:
      return {0, 52};
    case kIQ4_NL:
      return {2, 4};
    case kIQ4_XS:
      return {4, 33};
    case kMXFP4:
      return {1, 4};
    case kTQ2_0:
      return {0, 16};
    default:
      return {0, 0};
  }
}

// The words of a block whose codes have high bits elsewhere: halves of so many words with low bits and eight
// with high bits, and the words with scales. `first` words of each kind.
struct SplitWords {
  int first_low, first_high, first_scale, scales, low_of_half;
};

constexpr SplitWords split_words(Format format) {
  switch (format) {
    case kQ3_K:
      return {8, 0, 24, 3, 16};
    case kQ5_K:
      return {11, 3, 0, 3, 32};
    case kQ6_K:
      return {0, 32, 48, 4, 16};
    default:
      return {};
  }
}

// The place of a word among those of its block: kernels should read memory in order, or the hardware does not
// prefetch enough. Where high bits are elsewhere, scales come first, then each word with the word of its high
// bits; the words with low bits that use the same high bits later come last.
constexpr int place_of_word(Format format, int word) {
  const SplitWords of = split_words(format);
  if (!of.low_of_half) return word;
  if (word >= of.first_scale && word < of.first_scale + of.scales) return word - of.first_scale;
  const bool high = of.first_high > of.first_low ? word >= of.first_high : word < of.first_low;
  const int number = word - (high ? of.first_high : of.first_low), each = high ? 8 : of.low_of_half;
  const int i = number % each, half = of.scales + number / each * (of.low_of_half + 8);
  return half + (high ? 2 * i + 1 : i < 8 ? 2 * i : 8 + i);
}

// The bytes of a block that are not words, the byte at which they begin, and the bytes of each number.
constexpr int rest_bytes(Format format) { return kBlocks[format].bytes - 4 * words_of(format).count; }
constexpr int rest_first(Format format) { return words_of(format).first ? 0 : 4 * words_of(format).count; }
constexpr int rest_width(Format format) { return rest_bytes(format) % 2 ? 1 : 2; }

// Blocks of a group.
constexpr int64_t group_of(Format format) { return 4 / rest_bytes(format); }

// Whether a weight (n, k) of this format can be interleaved.
constexpr bool can_interleave(Format format, int64_t n, int64_t k) {
  return words_of(format).count && n % kBand == 0 && k % kBlocks[format].values == 0;
}

// Copies a piece of kBytes bytes of each row of a band; back from the band if kBack.
template <int kBytes, bool kBack>
inline void copy_piece(char* band, char* stored, int64_t row) {
  for (int64_t r = 0; r < kBand; ++r)
    kBack ? __builtin_memcpy(stored + r * row, band + r * kBytes, kBytes)
          : __builtin_memcpy(band + r * kBytes, stored + r * row, kBytes);
}

// The words of a block, of which the first row's are at `stored`, and then its rest.
template <bool kBack>
inline void copy_words(Format format, char* band, char* stored, int64_t row) {
  for (int i = 0; i < words_of(format).count; ++i)
    copy_piece<4, kBack>(band + 4 * kBand * place_of_word(format, i), stored + words_of(format).first + 4 * i,
                         row);
}
template <bool kBack>
inline void copy_rest(Format format, char* band, char* stored, int64_t row) {
  stored += rest_first(format);
  for (int i = 0; i < rest_bytes(format); i += rest_width(format))
    rest_width(format) == 2 ? copy_piece<2, kBack>(band + i * kBand, stored + i, row)
                            : copy_piece<1, kBack>(band + i * kBand, stored + i, row);
}

// Copies the blocks of one band between a weight as stored and an interleaved one. `stored` is the first row.
template <bool kBack>
inline void copy_band(Format format, char* band, char* stored, int64_t k) {
  const int64_t row = row_bytes(format, k), bytes = kBlocks[format].bytes, group = group_of(format) * bytes;
  const int64_t of_words = 4 * kBand * words_of(format).count, of_rest = kBand * rest_bytes(format);
  for (int64_t begin = 0; begin < row; begin += group) {
    const int64_t end = begin + group < row ? begin + group : row;
    for (int64_t at = begin; at < end; at += bytes, band += of_words)
      copy_words<kBack>(format, band, stored + at, row);
    for (int64_t at = begin; at < end; at += bytes, band += of_rest)
      copy_rest<kBack>(format, band, stored + at, row);
  }
}
inline void interleave_band(Format format, char* to, const char* stored, int64_t k) {
  copy_band<false>(format, to, const_cast<char*>(stored), k);
}
inline void deinterleave_band(Format format, char* to, const char* band, int64_t k) {
  copy_band<true>(format, const_cast<char*>(band), to, k);
}

}  // namespace cpu
