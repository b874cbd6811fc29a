// Compiles kernels.inl for each instruction set, and tells which of the sets this CPU runs.
// One binary runs on every CPU of its architecture: nothing here depends on compiler flags.
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "kernels.h"

#if defined(AIRLLM_PLAIN_VECTORS)  // as on an architecture that is not known here; for tests
#elif defined(__x86_64__)
#define AIRLLM_X86
#include <immintrin.h>
#elif defined(__aarch64__)
#define AIRLLM_ARM
#include <arm_neon.h>
#if !defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_DOTPROD)  // else it hides vdotq_s32
#define AIRLLM_ARM_DOTPROD
#endif
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP  // headers older than Linux 4.15 do not name it
#define HWCAP_ASIMDDP (1 << 20)
#endif
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

// A vector must not cross a call: that costs time, and depends on the caller's instruction set.
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))  // for what is called once a row, from several places
#pragma GCC diagnostic ignored "-Wpsabi"    // so none of the ABI's rules about them applies
#define STRING_(x) #x
#define STRING(x) STRING_(x)
#ifdef __clang__
#define BEGIN_TARGET(set) \
  _Pragma(STRING(clang attribute push(__attribute__((target(set))), apply_to = function)))
#define END_TARGET _Pragma("clang attribute pop")
#else
#define BEGIN_TARGET(set) _Pragma("GCC push_options") _Pragma(STRING(GCC target(set)))
#define END_TARGET _Pragma("GCC pop_options")
#endif

#if defined(AIRLLM_X86)

#define ISA sse2
#define LANES 4
#define VECTORS 16
#define STREAM_F32(p, v) _mm_stream_ps(p, (__m128)(v))
#define STREAM_16(p, v) _mm_stream_si64((long long*)(p), (long long)(v))
#define SUMS_OF_PAIRS(a, b) ((Int)_mm_madd_epi16((__m128i)(a), (__m128i)(b)))
// Each byte becomes the upper one of a word, then of 32 bits.
#define WIDEN_I8(p)                                                                                         \
  ((Int)_mm_srai_epi32(                                                                                     \
      _mm_unpacklo_epi16(                                                                                   \
          _mm_setzero_si128(),                                                                              \
          _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_cvtsi32_si128(static_cast<int>(stored::four_at(p))))), \
      24))
#define KEEP_IN_REGISTER(v) __asm__("" : "+x"(v))
#include "kernels.inl"

BEGIN_TARGET("avx2,fma,f16c")
#define ISA avx2
#define LANES 8
#define VECTORS 16
#define WIDEN_F16(p) ((Vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p))))
#define NARROW_F16(v) ((Bits16)_mm256_cvtps_ph((__m256)(v), _MM_FROUND_TO_NEAREST_INT))
#define WIDEN_I8(p) ((Int)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p))))
#define STREAM_F32(p, v) _mm256_stream_ps(p, (__m256)(v))
#define STREAM_16(p, v) _mm_stream_si128((__m128i*)(p), (__m128i)(v))
#define KEEP_IN_REGISTER(v) __asm__("" : "+x"(v))
#define PAIRS_U8_I8(u, i) ((Pairs)_mm256_maddubs_epi16((__m256i)(u), (__m256i)(i)))
#define PAIRS_I8_I8(w, x) \
  PAIRS_U8_I8(_mm256_abs_epi8((__m256i)(w)), _mm256_sign_epi8((__m256i)(x), (__m256i)(w)))
#define BYTES "avx2_bytes.inl"
#define FOURS_OF_PAIRS(p) ((Int)_mm256_madd_epi16((__m256i)(p), _mm256_set1_epi16(1)))
#include "kernels.inl"

#ifdef AIRLLM_TEST_TARGETS  // the 16-lane source on 8-lane instructions: for CPUs without AVX-512
#define ISA avx2_16lanes
#define LANES 16
#define VECTORS 16
#include "kernels.inl"
#endif
END_TARGET

#ifndef AIRLLM_WITHOUT_AVX512  // for programs that would rather compile in half the time
BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#define ISA avx512
#include "avx512.inl"
#define PAIRS_U8_I8(u, i) ((Pairs)_mm512_maddubs_epi16((__m512i)(u), (__m512i)(i)))
#define PAIRS_I8_I8(w, x)            \
  PAIRS_U8_I8(                       \
      _mm512_abs_epi8((__m512i)(w)), \
      _mm512_mask_sub_epi8((__m512i)(x), _mm512_movepi8_mask((__m512i)(w)), __m512i{}, (__m512i)(x)))
#define FOURS_OF_PAIRS(p) ((Int)_mm512_madd_epi16((__m512i)(p), _mm512_set1_epi16(1)))
#include "kernels.inl"
END_TARGET

BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#define ISA avx512_vnni
#define BASE avx512
#include "avx512.inl"
#define DOT_U8_I8(sum, u, i) ((Int)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(u), (__m512i)(i)))
#include "kernels_of_extension.inl"
END_TARGET

BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")
#define ISA avx512_bf16
#define BASE avx512_vnni
#include "avx512.inl"
#define NARROW_BF16(v) ((Bits16)_mm512_maskz_cvtneps_pbh(0xffff, (__m512)(v)))
#define DOT_BF16(sum, a, b) ((Vec)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(a), (__m512bh)(b)))
#include "kernels_of_extension.inl"
END_TARGET
#endif

#elif defined(AIRLLM_ARM)

#define ISA neon
#include "neon.inl"
// A product of -128 with -127 and one more still fit an int16.
#define DOT_I8_I8(sum, w, i)                                                                          \
  ((Int)vpadalq_s16((int32x4_t)(sum),                                                                 \
                    vmlal_high_s8(vmull_s8(vget_low_s8((int8x16_t)(w)), vget_low_s8((int8x16_t)(i))), \
                                  (int8x16_t)(w), (int8x16_t)(i))))
#include "kernels.inl"

#ifdef AIRLLM_ARM_DOTPROD
#ifdef __clang__
BEGIN_TARGET("dotprod")
#else
BEGIN_TARGET("arch=armv8.2-a+dotprod")
#endif
#define ISA neon_dotprod
#define BASE neon
#include "neon.inl"
#define DOT_I8_I8(sum, w, i) ((Int)vdotq_s32((int32x4_t)(sum), (int8x16_t)(w), (int8x16_t)(i)))
#define DOTS_AT_ONCE  // by one instruction: worth it for many rows too
#include "kernels_of_extension.inl"
END_TARGET
#endif

#else

#define ISA scalar  // the compiler takes the vectors apart
#define LANES 4
#define VECTORS 16
#include "kernels.inl"

#endif

#undef BEGIN_TARGET
#undef END_TARGET
#undef INLINE
#undef NOINLINE

namespace cpu {

// What this CPU, and the operating system's saving of its registers, can run.
struct Features {
  bool avx = false, avx2 = false, fma = false, f16c = false, avx512 = false, avx512_vnni = false,
       avx512_bf16 = false, neon = false, neon_dotprod = false;
};

#if defined(AIRLLM_ARM)
inline bool has_dotprod() {
#if defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#else
  return false;
#endif
}
#endif

inline Features features() {
  Features has;
#if defined(AIRLLM_X86)
  __builtin_cpu_init();  // a static initialiser may come before the one that does this
  has.avx = __builtin_cpu_supports("avx");
  has.avx2 = __builtin_cpu_supports("avx2");
  has.fma = __builtin_cpu_supports("fma");
  // GCC 10 cannot ask for "f16c"; every CPU with AVX2 has it, but an emulator may not show it.
  unsigned a = 1, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  has.f16c = has.avx && (c >> 29 & 1);
  has.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  has.avx512_vnni = has.avx512 && __builtin_cpu_supports("avx512vnni");
  has.avx512_bf16 = has.avx512_vnni && __builtin_cpu_supports("avx512bf16");
#elif defined(AIRLLM_ARM)
  has.neon = true;  // part of the architecture
  has.neon_dotprod = has_dotprod();
#endif
  return has;
}

// The sets that this CPU can run, best first.
inline std::vector<const Kernels*> supported() {
  std::vector<const Kernels*> found;
#if defined(AIRLLM_X86)
  const Features has = features();
  const bool wide = has.avx2 && has.fma && has.f16c;
#ifndef AIRLLM_WITHOUT_AVX512
  if (has.avx512_bf16 && wide) found.push_back(&avx512_bf16::kernels);
  if (has.avx512_vnni && wide) found.push_back(&avx512_vnni::kernels);
  if (has.avx512 && wide) found.push_back(&avx512::kernels);
#endif
  if (wide) found.push_back(&avx2::kernels);
  found.push_back(&sse2::kernels);
#ifdef AIRLLM_TEST_TARGETS
  if (wide) found.push_back(&avx2_16lanes::kernels);
#endif
#elif defined(AIRLLM_ARM)
#ifdef AIRLLM_ARM_DOTPROD
  if (features().neon_dotprod) found.push_back(&neon_dotprod::kernels);
#endif
  found.push_back(&neon::kernels);
#else
  found.push_back(&scalar::kernels);
#endif
  return found;
}

// The set that every CPU of this architecture has.
inline const char* baseline() {
#if defined(AIRLLM_X86)
  return sse2::kernels.isa;
#elif defined(AIRLLM_ARM)
  return neon::kernels.isa;
#else
  return scalar::kernels.isa;
#endif
}

}  // namespace cpu
