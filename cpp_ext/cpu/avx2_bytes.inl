// What bytes.inl needs of AVX2.

INLINE float half_at(const char* p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(word_at(p)))); }

INLINE Sixteen looked_up(Sixteen table, Sixteen index) {
  return (Sixteen)_mm_shuffle_epi8((__m128i)table, (__m128i)index);
}
INLINE Bytes from_table(Sixteen table, Bytes index) {
  return (Bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256((__m128i)table), (__m256i)index);
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

template <int kStride>
INLINE Vec halves(const char* p) {
  const __m128i index = _mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3);
  return (Vec)_mm256_cvtph_ps(_mm_shuffle_epi8(words_of_blocks<kStride>(p), index));
}

INLINE Bytes shifted_pair(const char* p, int, int shift, int) { return field(load_bytes(p), shift, 255); }

INLINE Int scales_of_lanes(Sixteen scales, const int8_t* index) {
  const __m128i taken = _mm_shuffle_epi8((__m128i)scales, _mm_loadl_epi64((const __m128i*)index));
  return (Int)_mm256_cvtepi8_epi32(taken);
}
