// Compiles kernels for an instruction set that not every CPU has: between BEGIN_TARGET(set) and END_TARGET
// the compiler may use it.
#pragma once
#include "../kernels.h"

#if defined(AIRLLM_PLAIN_VECTORS)  // as on an unknown architecture; for tests
#elif defined(__x86_64__)
#define AIRLLM_X86
#include <immintrin.h>
#if __clang_major__ >= 13 || (!defined(__clang__) && __GNUC__ >= 11)  // older: no AVX-VNNI
#define AIRLLM_AVX_VNNI
#if defined(__linux__) && !defined(AIRLLM_WITHOUT_AVX512)  // elsewhere a process asks in another way
#define AIRLLM_AMX
#endif
#endif
#elif defined(__aarch64__)
#define AIRLLM_ARM
#include <arm_neon.h>
#if !defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_DOTPROD)  // older: no vdotq_s32
#define AIRLLM_ARM_DOTPROD
#endif
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP  // headers older than Linux 4.15 do not define it
#define HWCAP_ASIMDDP (1 << 20)
#endif
#ifndef HWCAP2_I8MM  // older than Linux 5.6
#define HWCAP2_I8MM (1 << 13)
#endif
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

// A vector must not cross a call: that is slow, and depends on the caller's instruction set.
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))  // for functions called once per row, from several places
#pragma GCC diagnostic ignored "-Wpsabi"    // the ABI's rules for vectors do not apply then
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

#if defined(AIRLLM_X86) && defined(AIRLLM_SETS_APART)  // avx2.cpp and avx512.cpp compile them
namespace cpu {
namespace avx2 {
extern const Kernels kernels;
}
namespace avx_vnni {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_vnni {
extern const Kernels kernels;
}
namespace avx512_vbmi {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}
namespace avx512_amx {
extern const Kernels kernels;
}
}  // namespace cpu
#endif
