// The AVX-512 part of block_bytes.inl.
#ifndef AIRLLM_AVX512_BLOCK_BYTES_INL
#define AIRLLM_AVX512_BLOCK_BYTES_INL
#ifndef ISA
#define ISA avx512
#include "../targets/avx512_instructions.inl"
#include "../targets/region.h"
#endif
#include "bytes.inl"

namespace cpu::ISA {
namespace {
namespace stored {

INLINE float half_at(const char* p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(word_at(p)))); }

INLINE Bytes from_table(Sixteen table, Bytes index) {
  return (Bytes)_mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, (__m128i)table), (__m512i)index);
}

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

INLINE LanesOfBytes low_bytes(Int v) { return (LanesOfBytes)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v); }

INLINE __m512i concatenate(__m256i low, __m256i high) {
  return (__m512i)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}

template <int kStride>
INLINE __m256i two_pieces(const char* p) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)load_sixteen(p)),
                                 (__m128i)load_sixteen(p + kStride), 1);
}
template <int kStride>
INLINE Bytes pieces(const char* p) {
  return (Bytes)concatenate(two_pieces<kStride>(p), two_pieces<kStride>(p + 2 * kStride));
}
template <int kStride>
INLINE Bytes pieces(HalfGroup group) {
  return (Bytes)concatenate(two_pieces<kStride>(group.p), __m256i{});
}

// A word of each of four blocks, four times. It loads the two halves of the group; a half's second word must
// be in its first 64 bytes.
template <int kStride>
INLINE __m256i words_of_halves(const char* p, const char* half) {
  constexpr short kNext = kStride / 2;
  if constexpr (kStride + 2 <= 32) {
    constexpr short kFar = 16 + kNext;
    const __m256i index =
        _mm256_setr_epi16(0, 0, 0, 0, kNext, kNext, kNext, kNext, 16, 16, 16, 16, kFar, kFar, kFar, kFar);
    return _mm256_permutex2var_epi16(_mm256_loadu_si256((const __m256i*)p), index,
                                     _mm256_loadu_si256((const __m256i*)half));
  } else {
    constexpr short kFar = 32 + kNext;
    const __m256i index =
        _mm256_setr_epi16(0, 0, 0, 0, kNext, kNext, kNext, kNext, 32, 32, 32, 32, kFar, kFar, kFar, kFar);
    const __m512i words =
        _mm512_permutex2var_epi16(_mm512_loadu_si512(p), concatenate(index, index), _mm512_loadu_si512(half));
    return (__m256i)__builtin_shufflevector(words, words, 0, 1, 2, 3);
  }
}
template <int kStride>
INLINE __m256i words_of_blocks(const char* p) {
  return words_of_halves<kStride>(p, p + 2 * kStride);
}
template <int kStride>
INLINE __m256i words_of_blocks(HalfGroup group) {
  return words_of_halves<kStride>(group.p, group.p);
}

template <int kStride, class Group>
INLINE Bytes eights(Group p) {
  const __m512i each = _mm512_maskz_cvtepu16_epi32(0xffff, words_of_blocks<kStride>(p));
  const __m512i index =
      _mm512_maskz_broadcast_i32x4(0xffff, _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  return (Bytes)_mm512_shuffle_epi8(each, index);
}

INLINE Bytes each_eight_times(const char* p) {
  long long eight;
  __builtin_memcpy(&eight, p, 8);
  const __m512i index =
      _mm512_set_epi64(0x0707070707070707, 0x0606060606060606, 0x0505050505050505, 0x0404040404040404,
                       0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  return (Bytes)_mm512_shuffle_epi8(_mm512_set1_epi64(eight), index);
}
INLINE Bytes ones_of_bits(const char* p) {
  __mmask64 bits;
  __builtin_memcpy(&bits, p, 8);
  return (Bytes)_mm512_movm_epi8(bits);
}

template <int kStride, class Group>
INLINE Vec half_floats(Group p) {
  return (Vec)_mm512_maskz_cvtph_ps(0xffff, words_of_blocks<kStride>(p));
}
template <int kStride>
INLINE Vec half_floats(HalfGroup group) {
  return (Vec)_mm512_maskz_cvtph_ps(0x00ff, words_of_blocks<kStride>(group));
}

// For each word: the load that has it, among the loads of 64 bytes that cover 16 blocks, and its place there.
// The lower 16 lanes are the first words of the blocks, the upper ones the second words. The last load ends
// where the blocks end.
template <int kStride>
struct WordsOfBlocks {
  static constexpr int kLoads = (15 * kStride + 4 + 63) / 64;
  int16_t index[32] = {};
  uint32_t masks[kLoads] = {};
  static constexpr int start(int load) { return load == kLoads - 1 ? 16 * kStride - 64 : 64 * load; }
  constexpr WordsOfBlocks() {
    for (int lane = 0; lane < 32; ++lane) {
      const int at = block_of_lane(lane % 16) * kStride + lane / 16 * 2, load = at / 64;
      index[lane] = static_cast<int16_t>((at - start(load)) / 2);
      masks[load] |= 1u << lane;
    }
  }
};
template <int kStride>
constexpr WordsOfBlocks<kStride> both_words;

template <int kStride>
INLINE HalfFloats half_floats_of_blocks(const char* p) {
  constexpr WordsOfBlocks<kStride> words;
  const __m512i index = _mm512_loadu_si512(both_words<kStride>.index);
  __m512i found = __m512i{};
  for (int i = 0; i < words.kLoads; ++i)
    found =
        _mm512_mask_permutexvar_epi16(found, words.masks[i], index, _mm512_loadu_si512(p + words.start(i)));
  const __m256i first = (__m256i)__builtin_shufflevector(found, found, 0, 1, 2, 3);
  const __m256i second = (__m256i)__builtin_shufflevector(found, found, 4, 5, 6, 7);
  return {(Vec)_mm512_maskz_cvtph_ps(0xffff, first), (Vec)_mm512_maskz_cvtph_ps(0xffff, second)};
}

INLINE Bytes move_bits(const char* p, int, int from, int other_from, int to) {
  const __m512i twice = _mm512_maskz_broadcast_i64x4(0xff, _mm256_loadu_si256((const __m256i*)p));
  const __m512i by =
      concatenate(_mm256_set1_epi32((from - to) & 31), _mm256_set1_epi32((other_from - to) & 31));
  return (Bytes)_mm512_maskz_rorv_epi32(0xffff, twice, by);
}

INLINE Shorts in_all_pieces(EightWords words) {
  return (Shorts)_mm512_maskz_broadcast_i32x4(0xffff, (__m128i)words);
}
INLINE Shorts in_half_of_pieces(EightWords first, EightWords second) {
  return (Shorts)concatenate(_mm256_broadcastsi128_si256((__m128i)first),
                             _mm256_broadcastsi128_si256((__m128i)second));
}
INLINE Shorts words_of_pieces(Shorts words, const int8_t* index) {
  return (Shorts)_mm512_shuffle_epi8((__m512i)words, _mm512_load_si512(index));
}

INLINE Int in_first_lanes(FourInts four) { return (Int)_mm512_zextsi128_si512((__m128i)four); }
INLINE Vec in_first_lanes(FourFloats four) { return (Vec)_mm512_zextps128_ps512((__m128)four); }

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
