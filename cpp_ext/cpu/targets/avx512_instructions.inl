// The AVX-512 parameters and instructions of the kernels, for each set that has AVX-512.
#define LANES 16
#define VECTORS 32
#define WIDEN_F16(p) ((Vec)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)(p))))
#define NARROW_F16(v) ((Bits16)_mm512_maskz_cvtps_ph(0xffff, (__m512)(v), _MM_FROUND_TO_NEAREST_INT))
#define WIDEN_I8(p) ((Int)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i*)(p))))
#define PERMUTES_HALVES  // any 16-bit elements, with one instruction
// sixteen elements, by their places in memory, each above 16 zero bits
#define UPPER_HALVES_FROM(p, places)                                  \
  ((Vec)_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, (__m512i)(places), \
                                       _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)(p)))))
// t - floor(t), and p * 2^floor(t)
#define FRACTION(t) ((Vec)_mm512_maskz_reduce_ps(0xffff, (__m512)(t), _MM_FROUND_TO_NEG_INF))
#define TIMES_2_TO_THE_FLOOR(p, t) ((Vec)_mm512_maskz_scalef_ps(0xffff, (__m512)(p), (__m512)(t)))
#define STREAM_F32(p, v) _mm512_stream_ps(p, (__m512)(v))
#define STREAM_16(p, v) _mm256_stream_si256((__m256i*)(p), (__m256i)(v))
#define BLOCK_BYTES "avx512_block_bytes.inl"
#define LOOK_UP(table, index) _mm_shuffle_epi8((__m128i)(table), (__m128i)(index))
#define KEEP_IN_REGISTER(v) __asm__("" : "+v"(v))
#define PAIRS_U8_I8(u, i) ((Pairs)_mm512_maddubs_epi16((__m512i)(u), (__m512i)(i)))
#define PAIRS_I8_I8(w, x)            \
  PAIRS_U8_I8(                       \
      _mm512_abs_epi8((__m512i)(w)), \
      _mm512_mask_sub_epi8((__m512i)(x), _mm512_movepi8_mask((__m512i)(w)), __m512i{}, (__m512i)(x)))
#define SUMS_OF_PAIRS(a, b) ((Int)_mm512_madd_epi16((__m512i)(a), (__m512i)(b)))
#define FOURS_OF_PAIRS(p) SUMS_OF_PAIRS(p, _mm512_set1_epi16(1))
