// Eight consecutive elements of an array whose dtype is known only at run time.
#ifndef AIRLLM_CPU_DYNAMIC_DTYPE_H
#define AIRLLM_CPU_DYNAMIC_DTYPE_H

#include "../common/dynamic_dtype.h"
#include "packs.h"

DEVFN float8 load8_any(GLOBAL const void* p, U32 type, U64 i) {
  if (type == TYPE_F32) return load8_f32((GLOBAL const float*)p + i);
  if (type == TYPE_F16) return load8_f16((GLOBAL const F16*)p + i);
  return load8_bf16((GLOBAL const U16*)p + i);
}

DEVFN float8 mask_term8(GLOBAL const void* mask, U32 type, U64 i) {
  if (type == TYPE_NONE) return 0.0f;
  if (type != TYPE_BOOL) return load8_any(mask, type, i);
  const int8 kept = convert_int8(vload8(0, (GLOBAL const U8*)mask + i)) != 0;
  return select((float8)NEGATIVE_INFINITY, (float8)0.0f, kept);
}

DEVFN float8 masked8(float8 score, GLOBAL const void* mask, U32 type, U64 i) {
  const float8 term = mask_term8(mask, type, i);
  return select(score + term, term, term == (float8)NEGATIVE_INFINITY);
}

#endif
