// Blocks of q8_0, in which a cache may have keys and values: a half as scale, then 32 codes. A block begins
// at an even address.
#ifndef AIRLLM_Q8_0_H
#define AIRLLM_Q8_0_H

#include "../packs.h"

#define Q8_0_VALUES 32
#define Q8_0_BYTES 34

// As keys and values of a DTYPE whose elements are bytes.
#define TYPE_q8_0 U8
#define LENGTH_q8_0 8
#define BYTES_q8_0 1

DEVFN GLOBAL const U8* q8_0_block(GLOBAL const U8* row, U64 i) { return row + i / Q8_0_VALUES * Q8_0_BYTES; }
DEVFN float q8_0_scale(GLOBAL const U8* block) { return load_f16((GLOBAL const F16*)block, 0); }
DEVFN int q8_0_code(U8 code) { return ((int)code ^ 128) - 128; }

// A block of values v. Halves are rounded away from zero, as in airllm/formats/blocks_32.py.
DEVFN void store_q8_0(GLOBAL U8* block, const float* v) {
  float top = 0.0f;
  for (int j = 0; j < Q8_0_VALUES; ++j) top = FMAX(top, FABS(v[j]));
  const float scale = top / 127.0f, inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  store_f16((GLOBAL F16*)block, 0, scale);
  for (int j = 0; j < Q8_0_VALUES; ++j) {
    const float size = FMIN(FABS(v[j] * inverse), 127.0f);
    const int whole = (int)size, code = whole + (size - (float)whole >= 0.5f);
    block[2 + j] = (U8)((v[j] < 0.0f ? -code : code) & 255);
  }
}

#endif
