// Compiles kernels.inl for each instruction set, except those that AIRLLM_SETS_APART leaves to their own
// files, and finds which of the sets this CPU supports. One binary runs on every CPU of its architecture:
// nothing here depends on compiler flags.
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "region.h"
#ifdef AIRLLM_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(AIRLLM_X86)

#define ISA sse2
#define LANES 4
#define VECTORS 16
#define STREAM_F32(p, v) _mm_stream_ps(p, (__m128)(v))
#define STREAM_16(p, v) _mm_stream_si64((long long*)(p), (long long)(v))
#define SUMS_OF_PAIRS(a, b) ((Int)_mm_madd_epi16((__m128i)(a), (__m128i)(b)))
// Widens each byte to the upper byte of a word, then to 32 bits.
#define WIDEN_I8(p)                                                                                         \
  ((Int)_mm_srai_epi32(                                                                                     \
      _mm_unpacklo_epi16(                                                                                   \
          _mm_setzero_si128(),                                                                              \
          _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_cvtsi32_si128(static_cast<int>(stored::four_at(p))))), \
      24))
#define KEEP_IN_REGISTER(v) __asm__("" : "+x"(v))
#include "kernels.inl"

#ifndef AIRLLM_SETS_APART
#include "avx2.inl"
#include "avx512.inl"
#endif

#elif defined(AIRLLM_ARM)

#define ISA neon
#include "neon_instructions.inl"
// The sum of two products of -128 and -127 still fits an int16.
#define DOT_I8_I8(sum, w, i)                                                                          \
  ((Int)vpadalq_s16((int32x4_t)(sum),                                                                 \
                    vmlal_high_s8(vmull_s8(vget_low_s8((int8x16_t)(w)), vget_low_s8((int8x16_t)(i))), \
                                  (int8x16_t)(w), (int8x16_t)(i))))
#define DOT_IN_LANES(sum, w, i)                                                                    \
  ((Int)vpadalq_s16((int32x4_t)(sum),                                                              \
                    vpaddq_s16(vmull_s8(vget_low_s8((int8x16_t)(w)), vget_low_s8((int8x16_t)(i))), \
                               vmull_high_s8((int8x16_t)(w), (int8x16_t)(i)))))
#include "kernels.inl"

#ifdef AIRLLM_ARM_DOTPROD
#ifdef __clang__
BEGIN_TARGET("dotprod")
#else
BEGIN_TARGET("arch=armv8.2-a+dotprod")
#endif
#define ISA neon_dotprod
#define BASE neon
#include "neon_instructions.inl"
#define DOT_I8_I8(sum, w, i) ((Int)vdotq_s32((int32x4_t)(sum), (int8x16_t)(w), (int8x16_t)(i)))
#define DOTS_AT_ONCE  // with one instruction: useful for many rows too
#include "extension.inl"
END_TARGET

#ifdef __clang__
BEGIN_TARGET("dotprod,i8mm")
#else
BEGIN_TARGET("arch=armv8.2-a+dotprod+i8mm")
#endif
#define ISA neon_i8mm
#define BASE neon_dotprod
#include "neon_instructions.inl"
#define DOT_I8_I8(sum, w, i) ((Int)vdotq_s32((int32x4_t)(sum), (int8x16_t)(w), (int8x16_t)(i)))
#define DOTS_AT_ONCE
#define PRODUCTS_OF_PAIRS(sum, a, b) ((Int)vmmlaq_s32((int32x4_t)(sum), (int8x16_t)(a), (int8x16_t)(b)))
#include "extension.inl"
END_TARGET
#endif

#else

#define ISA scalar  // the compiler splits the vectors
#define LANES 4
#define VECTORS 16
#include "kernels.inl"

#endif

#undef BEGIN_TARGET
#undef END_TARGET
#undef INLINE
#undef NOINLINE

namespace cpu {

// What this CPU supports, and the operating system too: it must save the registers.
struct Features {
  bool avx = false, avx2 = false, fma = false, f16c = false, avx_vnni = false, avx512 = false,
       avx512_vnni = false, avx512_vbmi = false, avx512_bf16 = false, avx512_amx = false, neon = false,
       neon_dotprod = false, neon_i8mm = false;
};

#if defined(AIRLLM_ARM)
#if defined(__APPLE__)
inline bool has_arm_feature(const char* name) {
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname(name, &has, &size, nullptr, 0) == 0 && has;
}
inline bool has_dotprod() { return has_arm_feature("hw.optional.arm.FEAT_DotProd"); }
inline bool has_i8mm() { return has_arm_feature("hw.optional.arm.FEAT_I8MM"); }
#elif defined(__linux__)
inline bool has_dotprod() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
inline bool has_i8mm() { return getauxval(AT_HWCAP2) & HWCAP2_I8MM; }
#else
inline bool has_dotprod() { return false; }
inline bool has_i8mm() { return false; }
#endif
#endif

#if defined(AIRLLM_X86)
struct Cpuid {
  unsigned a = 0, b = 0, c = 0, d = 0;
};
// What the instruction answers. `__builtin_cpu_supports` of older compilers does not know all sets, and that
// of clang on Windows needs a library which is not linked by default.
inline Cpuid cpuid(unsigned leaf, unsigned subleaf = 0) {
  Cpuid of;
  __asm__("cpuid" : "=a"(of.a), "=b"(of.b), "=c"(of.c), "=d"(of.d) : "a"(leaf), "c"(subleaf));
  return of;
}
// The registers that the operating system saves, a bit for each kind.
inline unsigned saved_registers() {
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}
inline bool bit(unsigned word, int place) { return word >> place & 1; }

// Asks Linux for the tile registers of AMX: for this process, its threads and its children. It refuses where
// a thread has a stack for signals that is too small for them, and before version 5.16.
inline bool may_use_tiles() {
#ifdef AIRLLM_AMX
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

inline bool is_made_by_amd() {
  const Cpuid zero = cpuid(0);
  return zero.b == 0x68747541 && zero.d == 0x69746e65 && zero.c == 0x444d4163;  // AuthenticAMD
}
inline bool is_made_by_intel() {
  const Cpuid zero = cpuid(0);
  return zero.b == 0x756e6547 && zero.d == 0x49656e69 && zero.c == 0x6c65746e;  // GenuineIntel
}
// The family, with the extended one: 0x19 is Zen 3 and 4, 0x1a Zen 5.
inline unsigned family() {
  const unsigned signature = cpuid(1).a, base = signature >> 8 & 15;
  return base == 15 ? base + (signature >> 20 & 255) : base;
}
#endif

inline Features features() {
  Features has;
#if defined(AIRLLM_X86)
  const Cpuid one = cpuid(1), seven = cpuid(0).a >= 7 ? cpuid(7) : Cpuid{};
  const Cpuid more = seven.a >= 1 ? cpuid(7, 1) : Cpuid{};
  const unsigned saved = bit(one.c, 27) ? saved_registers() : 0;
  const bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6;
  has.avx = ymm && bit(one.c, 28);
  has.avx2 = has.avx && bit(seven.b, 5);
  has.fma = has.avx && bit(one.c, 12);
  has.f16c = has.avx && bit(one.c, 29);
  has.avx_vnni = has.avx2 && bit(more.a, 4);
  has.avx512 =
      has.avx2 && zmm && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31);
  has.avx512_vnni = has.avx512 && bit(seven.c, 11);
  has.avx512_vbmi = has.avx512_vnni && bit(seven.c, 1);
  has.avx512_bf16 = has.avx512_vbmi && bit(more.a, 5);
  const bool tiles = (saved & 0x60000) == 0x60000 && bit(seven.d, 24) && bit(seven.d, 25);
  has.avx512_amx = has.avx512_bf16 && tiles && may_use_tiles();
#elif defined(AIRLLM_ARM)
  has.neon = true;  // part of the architecture
  has.neon_dotprod = has_dotprod();
  has.neon_i8mm = has.neon_dotprod && has_i8mm();
#endif
  return has;
}

// The sets that this CPU supports, best first.
inline std::vector<const Kernels*> supported_sets() {
  std::vector<const Kernels*> found;
#if defined(AIRLLM_X86)
  const Features has = features();
  const bool wide = has.avx2 && has.fma && has.f16c;
#ifndef AIRLLM_WITHOUT_AVX512
#ifdef AIRLLM_AMX
  if (has.avx512_amx && wide) found.push_back(&avx512_amx::kernels);
#endif
  if (has.avx512_bf16 && wide) found.push_back(&avx512_bf16::kernels);
  if (has.avx512_vbmi && wide) found.push_back(&avx512_vbmi::kernels);
  if (has.avx512_vnni && wide) found.push_back(&avx512_vnni::kernels);
  if (has.avx512 && wide) found.push_back(&avx512::kernels);
#endif
#ifdef AIRLLM_AVX_VNNI
#ifdef AIRLLM_TEST_TARGETS
  if (has.avx512_vnni && wide) found.push_back(&avx_vnni::kernels);
#else
  if (has.avx_vnni && wide) found.push_back(&avx_vnni::kernels);
#endif
#endif
  if (wide) found.push_back(&avx2::kernels);
  found.push_back(&sse2::kernels);
#ifdef AIRLLM_TEST_TARGETS
  if (wide) found.push_back(&avx2_16lanes::kernels);
#endif
#elif defined(AIRLLM_ARM)
#ifdef AIRLLM_ARM_DOTPROD
  const Features has = features();
  if (has.neon_i8mm) found.push_back(&neon_i8mm::kernels);
  if (has.neon_dotprod) found.push_back(&neon_dotprod::kernels);
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
