// What the kernels of stored weights share.
#ifndef AIRLLM_LINEAR_H
#define AIRLLM_LINEAR_H

#include "../dynamic_dtype.h"

// Eight consecutive elements; `packs` allows reading 16 bytes at once.
DEVFN void load8_any(GLOBAL const void* p, U32 type, int packs, U64 i, float* v) {
  if (!packs) {
    for (int j = 0; j < 8; ++j) v[j] = load_any(p, type, i + j);
  } else if (type == TYPE_F32) {
    load4_f32((GLOBAL const float*)p + i, v);
    load4_f32((GLOBAL const float*)p + i + 4, v + 4);
  } else if (type == TYPE_F16) {
    load_pack_f16((GLOBAL const F16*)p + i, v);
  } else {
    load_pack_bf16((GLOBAL const U16*)p + i, v);
  }
}

DEVFN void store_column(GLOBAL void* out, U32 type, U64 row_start, U64 col, float v, GLOBAL const void* bias,
                        U32 bias_type) {
  store_any(out, type, row_start + col, bias_type == TYPE_NONE ? v : v + load_any(bias, bias_type, col));
}

DEVFN I64 load_id(GLOBAL const void* ids, U32 type, U64 i) {
  return type == TYPE_I32 ? (I64)((GLOBAL const int*)ids)[i] : ((GLOBAL const I64*)ids)[i];
}

#endif
