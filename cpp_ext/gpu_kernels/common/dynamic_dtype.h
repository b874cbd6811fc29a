// Arrays whose dtype is known only at run time, for small inputs: masks, biases, cosines.
#ifndef AIRLLM_DYNAMIC_DTYPE_H
#define AIRLLM_DYNAMIC_DTYPE_H

#include "packs.h"

// Type numbers; an absent array is NONE and is never read.
#define TYPE_NONE 0
#define TYPE_F32 1
#define TYPE_F16 2
#define TYPE_BF16 3
#define TYPE_BOOL 4
#define TYPE_I32 5
#define TYPE_I64 6

#define NEGATIVE_INFINITY AS_FLOAT(0xff800000u)

DEVFN float load_any(GLOBAL const void* p, U32 type, U64 i) {
  if (type == TYPE_F32) return load_f32((GLOBAL const float*)p, i);
  if (type == TYPE_F16) return load_f16((GLOBAL const F16*)p, i);
  return load_bf16((GLOBAL const U16*)p, i);
}
DEVFN void store_any(GLOBAL void* p, U32 type, U64 i, float v) {
  if (type == TYPE_F32) {
    store_f32((GLOBAL float*)p, i, v);
  } else if (type == TYPE_F16) {
    store_f16((GLOBAL F16*)p, i, v);
  } else {
    store_bf16((GLOBAL U16*)p, i, v);
  }
}
// `count` consecutive elements, 4 or 8; zeros if there is no array.
DEVFN void load_any_pack(GLOBAL const void* p, U32 type, U64 i, int count, float* v) {
  for (int j = 0; j < count; ++j) v[j] = type == TYPE_NONE ? 0.0f : load_any(p, type, i + j);
}

// What a mask adds to a score: a boolean mask keeps or hides it.
DEVFN float mask_term(GLOBAL const void* mask, U32 type, U64 i) {
  if (type == TYPE_NONE) return 0.0f;
  if (type == TYPE_BOOL) return ((GLOBAL const U8*)mask)[i] ? 0.0f : NEGATIVE_INFINITY;
  return load_any(mask, type, i);
}

// A masked score. A hidden score becomes -inf, whatever it was, even NaN or an infinity.
DEVFN float masked(float score, GLOBAL const void* mask, U32 type, U64 i) {
  const float term = mask_term(mask, type, i);
  return term == NEGATIVE_INFINITY ? term : score + term;
}

// The start of the array's row for row `row` of the result: the array's leading axes are broadcast. The
// result's leading axes have the sizes (..., n1, n2, n3), the array's have the strides (s0, s1, s2, s3).
#define LEADING U64 n1, U64 n2, U64 n3, U64 s0, U64 s1, U64 s2, U64 s3
DEVFN U64 leading_start(U64 row, LEADING) {
  const U64 i3 = row % n3, i2 = row / n3 % n2, i1 = row / n3 / n2 % n1, i0 = row / n3 / n2 / n1;
  return i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3;
}

#endif
