// Products with stored weights, and dequantization, for CPU devices: the same kernels, with local size 1, and
// products of float32 with blocks of 32 values or floats, which most of a model's are.
#include "../../common/elements/formulas.h"
#include "../../common/formats/formats.h"
#include "../packs.h"

// ---- 32 values of a row as vectors ----

#define UNPACK_FLOATS(t)                                                    \
  DEVFN void unpack32_##t(GLOBAL const U8* row, U64 block, float8* v) {     \
    GLOBAL const TYPE_##t* from = (GLOBAL const TYPE_##t*)row + block * 32; \
    v[0] = load8_##t(from), v[1] = load8_##t(from + 8);                     \
    v[2] = load8_##t(from + 16), v[3] = load8_##t(from + 24);               \
  }
UNPACK_FLOATS(f32)
UNPACK_FLOATS(f16)
UNPACK_FLOATS(bf16)

// A block's scale. PoCL's vload_half calls a function.
DEVFN float scale_at(GLOBAL const U8* p) {
  const U32 bits = *(GLOBAL const U16*)p, magnitude = (bits & 0x7fffu) << 13;
  const float finite = as_float(magnitude) * 0x1p112f;
  const U32 size = magnitude < 0x0f800000u ? as_uint(finite) : magnitude | 0x7f800000u;
  return as_float(size | (bits & 0x8000u) << 16);
}

DEVFN void unpack32_q8_0(GLOBAL const U8* row, U64 block, float8* v) {
  GLOBAL const U8* from = row + block * 34;
  const float8 scale = scale_at(from);
  GLOBAL const char* bytes = (GLOBAL const char*)from + 2;
  for (int j = 0; j < 4; ++j) v[j] = scale * convert_float8(vload8(j, bytes));
}
DEVFN void unpack32_q4_0(GLOBAL const U8* row, U64 block, float8* v) {
  GLOBAL const U8* from = row + block * 18;
  const float8 scale = scale_at(from);
  for (int j = 0; j < 2; ++j) {
    const int8 bytes = convert_int8(vload8(j, from + 2));
    v[j] = scale * convert_float8((bytes & 15) - 8);
    v[j + 2] = scale * convert_float8((bytes >> 4) - 8);
  }
}
DEVFN void unpack32_q4_1(GLOBAL const U8* row, U64 block, float8* v) {
  GLOBAL const U8* from = row + block * 20;
  const float8 scale = scale_at(from), least = scale_at(from + 2);
  for (int j = 0; j < 2; ++j) {
    const int8 bytes = convert_int8(vload8(j, from + 4));
    v[j] = scale * convert_float8(bytes & 15) + least;
    v[j + 2] = scale * convert_float8(bytes >> 4) + least;
  }
}

// The formats that are read so.
#define IS_VECTOR_f32 1
#define IS_VECTOR_f16 1
#define IS_VECTOR_bf16 1
#define IS_VECTOR_q8_0 1
#define IS_VECTOR_q4_0 1
#define IS_VECTOR_q4_1 1

#ifndef UNPACKING_ALONE
#define FORMAT f32
#include "linear_row.inc"
#define FORMAT f16
#include "linear_row.inc"
#define FORMAT bf16
#include "linear_row.inc"
#define FORMAT q8_0
#include "linear_row.inc"
#define FORMAT q4_0
#include "linear_row.inc"
#define FORMAT q4_1
#include "linear_row.inc"
#endif
