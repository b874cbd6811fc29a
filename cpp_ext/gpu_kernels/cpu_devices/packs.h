// Eight consecutive elements as a float8, at any alignment.
#ifndef AIRLLM_CPU_PACKS_H
#define AIRLLM_CPU_PACKS_H

#include "../common/gpu_compat.h"

DEVFN float8 load8_f32(GLOBAL const float* p) { return vload8(0, p); }
DEVFN void store8_f32(GLOBAL float* p, float8 v) { vstore8(v, 0, p); }

// Without vload_half8 and vstore_half8: PoCL's versions fault at addresses that are not multiples of 16, and
// LLVM splits computations on the former's result into single elements. The exponent gets float's bias; an
// exponent of all ones stays all ones, and a subtraction makes a subnormal, whose leading one is not implied.
DEVFN float8 load8_f16(GLOBAL const F16* p) {
  const uint8 half_bits = convert_uint8(vload8(0, (GLOBAL const ushort*)p));
  const uint8 magnitude = (half_bits & 0x7fffu) << 13, exponent = magnitude & (0x1fu << 23);
  const uint8 normal = magnitude + (112u << 23);
  const uint8 subnormal = as_uint8(as_float8(normal + (1u << 23)) - as_float(113u << 23));
  const uint8 infinite = normal + (112u << 23);
  const uint8 finite = select(normal, subnormal, exponent == 0u);
  return as_float8(select(finite, infinite, exponent == (0x1fu << 23)) | (half_bits & 0x8000u) << 16);
}
DEVFN void store8_f16(GLOBAL F16* p, float8 v) {
  ushort8 bits;
  vstore_half8_rte(v, 0, (F16*)&bits);
  vstore8(bits, 0, (GLOBAL ushort*)p);
}

DEVFN float8 load8_bf16(GLOBAL const U16* p) { return as_float8(convert_uint8(vload8(0, p)) << 16); }
DEVFN void store8_bf16(GLOBAL U16* p, float8 v) {
  const uint8 bits = as_uint8(v);
  const uint8 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  vstore8(convert_ushort8(select(rounded, (bits >> 16) | 0x40u, isnan(v))), 0, p);
}

DEVFN float sum8(float8 v) {
  const float4 half_sums = v.lo + v.hi;
  return (half_sums.x + half_sums.y) + (half_sums.z + half_sums.w);
}
DEVFN float max8(float8 v) {
  const float4 half_tops = fmax(v.lo, v.hi);
  return fmax(fmax(half_tops.x, half_tops.y), fmax(half_tops.z, half_tops.w));
}

#define LOAD8 JOIN(load8, DTYPE)
#define STORE8 JOIN(store8, DTYPE)

#endif
