// The kernels for AVX2.
#include "region.h"

BEGIN_TARGET("avx2,fma,f16c")
#define ISA avx2
#include "avx2_instructions.inl"
#include "kernels.inl"
END_TARGET

// AVX-VNNI: the dot products of AVX-512, for vectors of AVX2. Tests encode them as AVX-512 does, for CPUs
// that have only that.
#ifdef AIRLLM_AVX_VNNI
#ifdef AIRLLM_TEST_TARGETS
BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")
#define VNNI(name) _mm256_##name##_epi32
#else
BEGIN_TARGET("avxvnni,avx2,fma,f16c")
#define VNNI(name) _mm256_##name##_avx_epi32
#endif
#define ISA avx_vnni
#define BASE avx2
#include "avx2_instructions.inl"
#define DOT_U8_I8(sum, u, i) ((Int)VNNI(dpbusd)((__m256i)(sum), (__m256i)(u), (__m256i)(i)))
#define ADD_SUMS_OF_PAIRS(sum, a, b) ((Int)VNNI(dpwssd)((__m256i)(sum), (__m256i)(a), (__m256i)(b)))
#include "extension.inl"
#undef VNNI
END_TARGET
#endif

#ifdef AIRLLM_TEST_TARGETS  // the 16-lane source on 8-lane instructions: for CPUs without AVX-512
BEGIN_TARGET("avx2,fma,f16c")
#define ISA avx2_16lanes
#define LANES 16
#define VECTORS 16
#include "kernels.inl"
END_TARGET
#endif
