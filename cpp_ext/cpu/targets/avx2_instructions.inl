// The AVX2 parameters and instructions of the kernels.
#define LANES 8
#define VECTORS 16
#define WIDEN_F16(p) ((Vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p))))
#define NARROW_F16(v) ((Bits16)_mm256_cvtps_ph((__m256)(v), _MM_FROUND_TO_NEAREST_INT))
#define WIDEN_U16(p) ((Bits)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p))))
#define WIDEN_I8(p) ((Int)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p))))
#define STREAM_F32(p, v) _mm256_stream_ps(p, (__m256)(v))
#define STREAM_16(p, v) _mm_stream_si128((__m128i*)(p), (__m128i)(v))
#define KEEP_IN_REGISTER(v) __asm__("" : "+x"(v))
#define PAIRS_U8_I8(u, i) ((Pairs)_mm256_maddubs_epi16((__m256i)(u), (__m256i)(i)))
#define PAIRS_I8_I8(w, x) \
  PAIRS_U8_I8(_mm256_abs_epi8((__m256i)(w)), _mm256_sign_epi8((__m256i)(x), (__m256i)(w)))
#define BLOCK_BYTES "avx2_block_bytes.inl"
#define LOOK_UP(table, index) _mm_shuffle_epi8((__m128i)(table), (__m128i)(index))
#define SUMS_OF_PAIRS(a, b) ((Int)_mm256_madd_epi16((__m256i)(a), (__m256i)(b)))
#define FOURS_OF_PAIRS(p) SUMS_OF_PAIRS(p, _mm256_set1_epi16(1))
