// Products of several rows of x with weights as stored, in blocks of 256, that can be interleaved
// (interleaved.h): a piece of 16 rows of weights is interleaved in the cache, then multiplied as a band. So
// words are moved to their lanes once for all rows of x, where kernels that read rows as they lie add across
// lanes for each row of x.
//
// Blocks and their sums are those of interleaved.inl: a result has the same bits.
#ifndef AIRLLM_STORED_BANDS_INL
#define AIRLLM_STORED_BANDS_INL
#include "../../simd/transpose.inl"
#include "interleaved.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// The fewest packed rows of x for which this is faster than the kernels of several_rows_256.inl in most
// formats, as measured on Zen 4.
constexpr int64_t kFewestForBands = VECTORS < 32 ? 4 : 3;

// Four words of each of kLanes / 4 rows, `step` bytes apart. Pieces of vectors are loaded: to move words
// between whole vectors takes twice as many shuffles.
template <int kLanes, int... I>
INLINE auto words_of_rows(const char* at, int64_t step, std::integer_sequence<int, I...>) {
  if constexpr (kLanes == 4) {
    FourInts words;
    __builtin_memcpy(&words, at, sizeof words);
    return words;
  } else {
    constexpr auto kHalf = std::make_integer_sequence<int, kLanes / 2>{};
    return __builtin_shufflevector(words_of_rows<kLanes / 2>(at, step, kHalf),
                                   words_of_rows<kLanes / 2>(at + kLanes / 8 * step, step, kHalf), I...);
  }
}

// Stores words [word, word + 4) of a block of LANES rows, `row` bytes apart, in the lanes of those rows.
template <class F>
INLINE void interleave_words(char* to, const char* stored, int64_t row, int word) {
  constexpr auto kAll = std::make_integer_sequence<int, LANES>{};
  const char* const from = stored + words_of(F::kFormat).first + 4 * word;
  Int words[4];  // lane 4 l + i of vector r has word i of row 4 l + r
  for (int r = 0; r < 4; ++r) words[r] = (Int)words_of_rows<LANES>(from + r * row, 4 * row, kAll);
  transpose_fours(words);
  for (int i = 0; i < 4; ++i) store_int(to + 4 * kBand * place_of_word(F::kFormat, word + i), words[i]);
}

// Interleaves a block of a band: its words, the last ones perhaps twice, and the rest of it.
template <class F>
INLINE void interleave_block(char* words, char* rest, const char* stored, int64_t row) {
  constexpr int kCount = words_of(F::kFormat).count;
  for (int lane = 0; lane < kBand; lane += LANES)
#pragma GCC unroll 16
    for (int word = 0; word < kCount; word += 4)
      interleave_words<F>(words + 4 * lane, stored + lane * row, row, word + 4 <= kCount ? word : kCount - 4);
  copy_rest<false>(F::kFormat, rest, const_cast<char*>(stored), row);
}

// Interleaves so many blocks of a band, the first of which begins a group. The hardware does not prefetch
// them, since few bytes of each row lie together: so those of the next band are prefetched.
template <class F>
INLINE void interleave_blocks(char* to, const char* stored, int64_t row, int64_t blocks) {
  constexpr int64_t kGroupBlocks = group_of(F::kFormat), kWordBytes = 4 * kBand * words_of(F::kFormat).count;
  for (int64_t b = 0; b < blocks; b += kGroupBlocks) {
    const int64_t some = smaller(kGroupBlocks, blocks - b);
    char* const rest = to + some * kWordBytes;
    for (int64_t i = b; i < b + some; ++i, to += kWordBytes) {
      interleave_block<F>(to, rest + (i - b) * kBand * rest_bytes(F::kFormat), stored + i * F::kBytes, row);
      for (int64_t r = kBand + i * kBand / blocks; r < kBand + (i + 1) * kBand / blocks; ++r)
        for (int64_t at = 0; at < blocks * F::kBytes; at += 64)
          __builtin_prefetch(stored + r * row + at, 0, 2);
    }
    to = rest + some * kBand * rest_bytes(F::kFormat);
  }
}

// At most kDecodeRows packed rows of x.
template <class F>
void multiply_stored_bands(const LinearPart& part) {
  constexpr int64_t kBlocks = kDepthOfBand / F::kValues;
  alignas(64) char band[kBlocks * kBand * F::kBytes];
  const int64_t row = row_bytes(F::kFormat, part.k), blocks = part.k / F::kValues;
  for (int64_t n = part.n0 / kBand * kBand; n < part.n1; n += kBand) {
    alignas(64) float totals[kDecodeRows][kBand] = {};
    for (int64_t b = 0; b < blocks; b += kBlocks) {
      const int64_t some = smaller(kBlocks, blocks - b);
      interleave_blocks<F>(band, part.weight + n * row + b * F::kBytes, row, some);
      for (int64_t m = 0, rows; m < part.packed_rows(); m += rows) {
        rows = rows_of_pass(part.packed_rows() - m);
        add_rows_to<F>(totals + m, part, m, rows, band, b, some);
      }
    }
    store_band(part, 0, part.packed_rows(), n, totals);
  }
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
