// The kernels for the sets with AVX-512.
#include "region.h"

#ifndef AIRLLM_WITHOUT_AVX512  // for programs that prefer half the compile time
BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#define ISA avx512
#include "avx512_instructions.inl"
#include "kernels.inl"
END_TARGET

BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#define ISA avx512_vnni
#define BASE avx512
#include "avx512_instructions.inl"
#define DOT_U8_I8(sum, u, i) ((Int)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(u), (__m512i)(i)))
#define ADD_SUMS_OF_PAIRS(sum, a, b) ((Int)_mm512_dpwssd_epi32((__m512i)(sum), (__m512i)(a), (__m512i)(b)))
#include "extension.inl"
END_TARGET

BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")
#define ISA avx512_vbmi
#define BASE avx512_vnni
#include "avx512_instructions.inl"
#define DOT_U8_I8(sum, u, i) ((Int)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(u), (__m512i)(i)))
#define ADD_SUMS_OF_PAIRS(sum, a, b) ((Int)_mm512_dpwssd_epi32((__m512i)(sum), (__m512i)(a), (__m512i)(b)))
#define LOOKS_UP_BYTES
#include "extension.inl"
END_TARGET

BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")
#define ISA avx512_bf16
#define BASE avx512_vbmi
#include "avx512_instructions.inl"
#define NARROW_BF16(v) ((Bits16)_mm512_maskz_cvtneps_pbh(0xffff, (__m512)(v)))
#define DOT_BF16(sum, a, b) ((Vec)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(a), (__m512bh)(b)))
#include "extension.inl"
END_TARGET

#ifdef AIRLLM_AMX
BEGIN_TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8,avx2,fma,f16c")
#define ISA avx512_amx
#define BASE avx512_bf16
#include "avx512_instructions.inl"
#define DOT_U8_I8(sum, u, i) ((Int)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(u), (__m512i)(i)))
#define ADD_SUMS_OF_PAIRS(sum, a, b) ((Int)_mm512_dpwssd_epi32((__m512i)(sum), (__m512i)(a), (__m512i)(b)))
#define TILES
#include "extension.inl"
END_TARGET
#endif
#endif
