// Loads and stores each type as float: one element, 4 elements, or a pack of 16 bytes.
// float16 has no arithmetic here (many OpenCL devices lack cl_khr_fp16). bfloat16 is the upper half of a
// float.
#ifndef AIRLLM_PACKS_H
#define AIRLLM_PACKS_H

#include "gpu_compat.h"

#define TYPE_f32 float
#define TYPE_f16 F16
#define TYPE_bf16 U16
#define LENGTH_f32 4
#define LENGTH_f16 8
#define LENGTH_bf16 8
#define BYTES_f32 4
#define BYTES_f16 2
#define BYTES_bf16 2

#define ALIGNED(p, bytes) ((ADDRESS(p) & ((bytes) - 1)) == 0)

DEVFN float load_f32(GLOBAL const float* p, U64 i) { return p[i]; }
DEVFN void store_f32(GLOBAL float* p, U64 i, float v) { p[i] = v; }

DEVFN void load4_f32(GLOBAL const float* p, float* v) {
  const float4 t = *(GLOBAL const float4*)p;
  v[0] = t.x, v[1] = t.y, v[2] = t.z, v[3] = t.w;
}
DEVFN void store4_f32(GLOBAL float* p, const float* v) {
  *(GLOBAL float4*)p = FLOAT4(v[0], v[1], v[2], v[3]);
}
DEVFN void load_pack_f32(GLOBAL const float* p, float* v) { load4_f32(p, v); }
DEVFN void store_pack_f32(GLOBAL float* p, const float* v) { store4_f32(p, v); }

DEVFN U32 bf16_bits(float v) {  // round to nearest, ties to even; a NaN stays a NaN
  const U32 bits = AS_UINT(v);
  return ISNAN(v) ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
DEVFN U32 bf16_pair(float low, float high) { return bf16_bits(low) | (bf16_bits(high) << 16); }
DEVFN void bf16_unpack(U32 pair, float* v) {
  v[0] = AS_FLOAT(pair << 16), v[1] = AS_FLOAT(pair & 0xffff0000u);
}

DEVFN float load_bf16(GLOBAL const U16* p, U64 i) { return AS_FLOAT((U32)p[i] << 16); }
DEVFN void store_bf16(GLOBAL U16* p, U64 i, float v) { p[i] = (U16)bf16_bits(v); }
DEVFN void load4_bf16(GLOBAL const U16* p, float* v) {
  const uint2 t = *(GLOBAL const uint2*)p;
  bf16_unpack(t.x, v), bf16_unpack(t.y, v + 2);
}
DEVFN void store4_bf16(GLOBAL U16* p, const float* v) {
  *(GLOBAL uint2*)p = UINT2(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]));
}
DEVFN void load_pack_bf16(GLOBAL const U16* p, float* v) {
  const uint4 t = *(GLOBAL const uint4*)p;
  bf16_unpack(t.x, v), bf16_unpack(t.y, v + 2), bf16_unpack(t.z, v + 4), bf16_unpack(t.w, v + 6);
}
DEVFN void store_pack_bf16(GLOBAL U16* p, const float* v) {
  *(GLOBAL uint4*)p =
      UINT4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
}

#if defined(__OPENCL_C_VERSION__) || defined(__OPENCL_VERSION__)

DEVFN float load_f16(GLOBAL const F16* p, U64 i) { return vload_half(i, p); }
DEVFN void store_f16(GLOBAL F16* p, U64 i, float v) { vstore_half_rte(v, i, p); }
DEVFN void load4_f16(GLOBAL const F16* p, float* v) { vstore4(vloada_half4(0, p), 0, v); }
DEVFN void store4_f16(GLOBAL F16* p, const float* v) { vstorea_half4_rte(vload4(0, v), 0, p); }
DEVFN void load_pack_f16(GLOBAL const F16* p, float* v) { vstore8(vloada_half8(0, p), 0, v); }
DEVFN void store_pack_f16(GLOBAL F16* p, const float* v) { vstorea_half8_rte(vload8(0, v), 0, p); }

#else

#if defined(__CUDACC_RTC__)

DEVFN float f16_value(F16 half) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(half));
  return v;
}
DEVFN F16 f16_rounded(float v) {
  F16 half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(v));
  return half;
}
DEVFN U32 f16_pair(float low, float high) { return f16_rounded(low) | ((U32)f16_rounded(high) << 16); }
DEVFN void f16_unpack(U32 bits, float* v) {
  v[0] = f16_value((F16)(bits & 0xffffu)), v[1] = f16_value((F16)(bits >> 16));
}

#else

typedef union {
  U32 bits;
  __half2 halves;
} F16Pair;
DEVFN float f16_value(F16 half) { return __half2float(half); }
DEVFN F16 f16_rounded(float v) { return __float2half_rn(v); }
DEVFN U32 f16_pair(float low, float high) {
  F16Pair pair;
  pair.halves = __floats2half2_rn(low, high);
  return pair.bits;
}
DEVFN void f16_unpack(U32 bits, float* v) {
  F16Pair pair;
  pair.bits = bits;
  const float2 t = __half22float2(pair.halves);
  v[0] = t.x, v[1] = t.y;
}

#endif

DEVFN float load_f16(const F16* p, U64 i) { return f16_value(p[i]); }
DEVFN void store_f16(F16* p, U64 i, float v) { p[i] = f16_rounded(v); }
DEVFN void load4_f16(const F16* p, float* v) {
  const uint2 t = *(const uint2*)p;
  f16_unpack(t.x, v), f16_unpack(t.y, v + 2);
}
DEVFN void store4_f16(F16* p, const float* v) {
  *(uint2*)p = UINT2(f16_pair(v[0], v[1]), f16_pair(v[2], v[3]));
}
DEVFN void load_pack_f16(const F16* p, float* v) {
  const uint4 t = *(const uint4*)p;
  f16_unpack(t.x, v), f16_unpack(t.y, v + 2), f16_unpack(t.z, v + 4), f16_unpack(t.w, v + 6);
}
DEVFN void store_pack_f16(F16* p, const float* v) {
  *(uint4*)p = UINT4(f16_pair(v[0], v[1]), f16_pair(v[2], v[3]), f16_pair(v[4], v[5]), f16_pair(v[6], v[7]));
}

#endif

// Names for the kernels; DTYPE is f32, f16 or bf16 while a kernel file is included.
#define NAME(op) JOIN(op, DTYPE)
#define T JOIN(TYPE, DTYPE)
#define PACK JOIN(LENGTH, DTYPE)
#define LOAD JOIN(load, DTYPE)
#define STORE JOIN(store, DTYPE)
#define LOAD4 JOIN(load4, DTYPE)
#define STORE4 JOIN(store4, DTYPE)
#define LOAD_PACK JOIN(load_pack, DTYPE)
#define STORE_PACK JOIN(store_pack, DTYPE)
#define QUAD_BYTES (4 * JOIN(BYTES, DTYPE))

#endif
