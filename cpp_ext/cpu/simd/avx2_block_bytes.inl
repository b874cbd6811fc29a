// The AVX2 part of block_bytes.inl.
#ifndef AIRLLM_AVX2_BLOCK_BYTES_INL
#define AIRLLM_AVX2_BLOCK_BYTES_INL
#ifndef ISA
#define ISA avx2
#include "../targets/avx2_instructions.inl"
#include "../targets/region.h"
#endif
#include "bytes.inl"

namespace cpu::ISA {
namespace {
namespace stored {

INLINE float half_at(const char* p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(word_at(p)))); }

// Converts bytes to words. GCC would convert four at a time.
INLINE EightWords words_of(uint64_t eight) {
  return (EightWords)_mm_cvtepi8_epi16(_mm_cvtsi64_si128((long long)eight));
}
INLINE EightWords words_at(const char* p) {
  return (EightWords)_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)p));
}
INLINE EightWords first_words_of(Sixteen v) { return (EightWords)_mm_cvtepi8_epi16((__m128i)v); }
INLINE EightWords last_words_of(Sixteen v) {
  return (EightWords)_mm_cvtepi8_epi16(_mm_unpackhi_epi64((__m128i)v, (__m128i)v));
}

INLINE LanesOfBytes low_bytes(Int v) {  // GCC would extract each lane separately
  const __m128i index = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i fours = _mm256_shuffle_epi8((__m256i)v, _mm256_broadcastsi128_si256(index));
  const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
  return (LanesOfBytes)_mm_cvtsi128_si64(both);
}

INLINE Bytes from_table(Sixteen table, Bytes index) {
  return (Bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256((__m128i)table), (__m256i)index);
}

// Each word is loaded into all lanes and blended in: what puts a word into one lane has a single port.
template <class Word>
INLINE Bytes bytes_of_words(const Word& word) {
  if constexpr (sizeof word(0) == 8) {
    const auto each = [&](int i) { return _mm256_set1_epi64x(static_cast<long long>(word(i))); };
    const __m256i low = _mm256_blend_epi32(each(0), each(1), 0x0c),
                  high = _mm256_blend_epi32(each(2), each(3), 0xc0);
    return (Bytes)_mm256_blend_epi32(low, high, 0xf0);
  } else {
    const auto each = [&](int i) { return _mm256_set1_epi32(static_cast<int>(word(i))); };
    const __m256i first = _mm256_blend_epi32(each(0), each(1), 0x02),
                  second = _mm256_blend_epi32(each(2), each(3), 0x08),
                  third = _mm256_blend_epi32(each(4), each(5), 0x20),
                  fourth = _mm256_blend_epi32(each(6), each(7), 0x80);
    return (Bytes)_mm256_blend_epi32(_mm256_blend_epi32(first, second, 0x0c),
                                     _mm256_blend_epi32(third, fourth, 0xc0), 0xf0);
  }
}

template <int kStride>
INLINE Bytes pieces(const char* p) {
  return (Bytes)_mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)load_sixteen(p)),
                                        (__m128i)load_sixteen(p + kStride), 1);
}

template <int kStride>
INLINE __m128i words_of_blocks(const char* p) {
  return _mm_insert_epi16(_mm_cvtsi32_si128(word_at(p)), word_at(p + kStride), 1);
}

template <int kStride>
INLINE Bytes eights(const char* p) {
  const __m256i both = _mm256_broadcastsi128_si256(words_of_blocks<kStride>(p));
  const __m256i index = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2,
                                         2, 3, 3, 3, 3, 3, 3, 3, 3);
  return (Bytes)_mm256_shuffle_epi8(both, index);
}

INLINE Bytes each_eight_times(const char* p) {
  const __m256i index = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2,
                                         2, 3, 3, 3, 3, 3, 3, 3, 3);
  return (Bytes)_mm256_shuffle_epi8((__m256i)four_in_all_lanes(p), index);
}
INLINE Bytes ones_of_bits(const char* p) {
  const Bytes masks = (Bytes)(Longs{} + 0x8040201008040201u);
  return (each_eight_times(p) & masks) == masks;
}

template <int kStride>
INLINE Vec half_floats(const char* p) {
  const __m128i index = _mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3);
  return (Vec)_mm256_cvtph_ps(_mm_shuffle_epi8(words_of_blocks<kStride>(p), index));
}

template <int kStride>
INLINE __m128i word_of_blocks(const char* p) {
  __m128i words = _mm_cvtsi32_si128(word_at(p));
  words = _mm_insert_epi16(words, word_at(p + block_of_lane(1) * kStride), 1);
  words = _mm_insert_epi16(words, word_at(p + block_of_lane(2) * kStride), 2);
  words = _mm_insert_epi16(words, word_at(p + block_of_lane(3) * kStride), 3);
  words = _mm_insert_epi16(words, word_at(p + block_of_lane(4) * kStride), 4);
  words = _mm_insert_epi16(words, word_at(p + block_of_lane(5) * kStride), 5);
  words = _mm_insert_epi16(words, word_at(p + block_of_lane(6) * kStride), 6);
  return _mm_insert_epi16(words, word_at(p + block_of_lane(7) * kStride), 7);
}
template <int kStride>
INLINE HalfFloats half_floats_of_blocks(const char* p) {
  return {(Vec)_mm256_cvtph_ps(word_of_blocks<kStride>(p)),
          (Vec)_mm256_cvtph_ps(word_of_blocks<kStride>(p + 2))};
}

INLINE Bytes move_bits(const char* p, int, int from, int, int to) {
  const Words v = (Words)load_bytes(p);
  return (Bytes)(from > to ? v >> (from - to) : v << (to - from));
}

INLINE Shorts in_all_pieces(EightWords words) { return (Shorts)_mm256_broadcastsi128_si256((__m128i)words); }
INLINE Shorts in_half_of_pieces(EightWords first, EightWords second) {
  return (Shorts)_mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)first), (__m128i)second, 1);
}
INLINE Shorts words_of_pieces(Shorts words, const int8_t* index) {
  return (Shorts)_mm256_shuffle_epi8((__m256i)words, _mm256_load_si256((const __m256i*)index));
}

INLINE Int in_first_lanes(FourInts four) { return (Int)_mm256_zextsi128_si256((__m128i)four); }
INLINE Vec in_first_lanes(FourFloats four) { return (Vec)_mm256_zextps128_ps256((__m128)four); }

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
