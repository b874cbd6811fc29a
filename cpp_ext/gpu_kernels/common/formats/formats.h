// Stored weights: reads 16 values at a time, of a float type or of one of ggml's block formats
// (airllm/formats/ defines them). A unit is 16 values that are adjacent in memory: two runs of 8,
// the second APART from the first, since two values of a block often share a byte. Blocks begin at even
// addresses, but for those of mxfp4.
//
// A block format is a row of the table, run_<format>(unit), which returns where a unit's first run begins,
// and unpack_<format>(block, unit, v), which unpacks both runs; then block_kernels.inc defines its kernels.
// Products and sums are rounded separately, as in the definition: dequantized values match it bit for bit.
#ifndef AIRLLM_FORMATS_H
#define AIRLLM_FORMATS_H

#include "../dynamic_dtype.h"

#if defined(__OPENCL_C_VERSION__) || defined(__OPENCL_VERSION__)
#pragma OPENCL FP_CONTRACT OFF
#endif

#include "../gpu_compat.h"
#include "../linear/linear.h"
#include "../packs.h"
#include "../reduce.h"
#include "codebooks.h"

// The block formats: name, ggml's number, values per block, bytes per block, APART.
#define BLOCK_FORMATS(FORMAT)      \
  FORMAT(q8_0, 8, 32, 34, 8)       \
  FORMAT(q4_0, 2, 32, 18, 16)      \
  FORMAT(q4_1, 3, 32, 20, 16)      \
  FORMAT(q5_0, 6, 32, 22, 16)      \
  FORMAT(q5_1, 7, 32, 24, 16)      \
  FORMAT(q2_k, 10, 256, 84, 32)    \
  FORMAT(q3_k, 11, 256, 110, 32)   \
  FORMAT(q4_k, 12, 256, 144, 32)   \
  FORMAT(q5_k, 13, 256, 176, 32)   \
  FORMAT(q6_k, 14, 256, 210, 64)   \
  FORMAT(iq4_nl, 20, 32, 18, 16)   \
  FORMAT(iq4_xs, 23, 256, 136, 16) \
  FORMAT(mxfp4, 39, 32, 17, 16)    \
  FORMAT(tq1_0, 34, 256, 54, 8)    \
  FORMAT(tq2_0, 35, 256, 66, 32)   \
  FORMAT(iq3_xxs, 18, 256, 98, 8)  \
  FORMAT(iq3_s, 21, 256, 110, 8)   \
  FORMAT(iq2_xxs, 16, 256, 66, 8)  \
  FORMAT(iq2_xs, 17, 256, 74, 8)   \
  FORMAT(iq2_s, 22, 256, 82, 8)    \
  FORMAT(iq1_s, 19, 256, 50, 8)    \
  FORMAT(iq1_m, 29, 256, 56, 8)

// Format numbers: those of the float types, then these.
#define FIRST_BLOCK_FORMAT 16
#define FORMAT_SIZES(format, ggml_type, values, bytes, apart) \
  VALUES_##format = values, APART_##format = apart, NUMBER_##format = FIRST_BLOCK_FORMAT + ggml_type,
enum { BLOCK_FORMATS(FORMAT_SIZES) };

#define BLOCK_BYTES(format, ggml_type, values, bytes, apart)         \
  DEVFN U64 row_bytes_##format(U64 k) { return k / values * bytes; } \
  DEVFN U64 block_bytes_##format(void) { return bytes; }
BLOCK_FORMATS(BLOCK_BYTES)

// ---- bytes ----

// Eight consecutive bytes, four in each word.
DEVFN void load_bytes(GLOBAL const U8* p, U32* words) {
  GLOBAL const U16* pairs = (GLOBAL const U16*)p;
  words[0] = (U32)pairs[0] | (U32)pairs[1] << 16;
  words[1] = (U32)pairs[2] | (U32)pairs[3] << 16;
}

// Bits of byte j of these eight.
#define FIELD(words, j, shift, mask) ((int)((words)[(j) / 4] >> ((j) % 4 * 8 + (shift)) & (mask)))

DEVFN float half_at(GLOBAL const U8* p) { return load_f16((GLOBAL const F16*)p, 0); }

// scale * q + offset of a run, each operation rounded.
#define SCALED(scale, q, offset) ADD_ROUNDED(MUL_ROUNDED(scale, (float)(q)), offset)

#define VALUES_OF(format) JOIN(VALUES, format)
#define UNITS_OF(format) (VALUES_OF(format) / 16)

// ---- floats ----

#define VALUES_f32 16
#define VALUES_f16 16
#define VALUES_bf16 16
#define IS_FLOAT_f32 1
#define IS_FLOAT_f16 1
#define IS_FLOAT_bf16 1
#define APART_f32 8
#define APART_f16 8
#define APART_bf16 8

#define FLOAT_FORMAT(t)                                                                                   \
  DEVFN U64 row_bytes_##t(U64 k) { return k * BYTES_##t; }                                                \
  DEVFN U64 block_bytes_##t(void) { return 16 * BYTES_##t; }                                              \
  DEVFN int run_##t(int unit) { return unit * 16; }                                                       \
  DEVFN float value_##t(GLOBAL const U8* row, U64 i) { return load_##t((GLOBAL const TYPE_##t*)row, i); } \
  DEVFN void unpack_##t(GLOBAL const U8* block, int unit, float* v) {                                     \
    GLOBAL const TYPE_##t* from = (GLOBAL const TYPE_##t*)block + unit * 16;                              \
    if (ALIGNED(from, 16)) {                                                                              \
      for (int j = 0; j < 16; j += LENGTH_##t) load_pack_##t(from + j, v + j);                            \
    } else {                                                                                              \
      for (int j = 0; j < 16; ++j) v[j] = load_##t(from, j);                                              \
    }                                                                                                     \
  }
FLOAT_FORMAT(f32)
FLOAT_FORMAT(f16)
FLOAT_FORMAT(bf16)

#define BODY "formats/float_kernels.inc"
#include "../for_each_dtype.h"

// ---- blocks of 32 ----

DEVFN int run_q8_0(int unit) { return unit * 16; }
DEVFN void unpack_q8_0(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block);
  U32 words[4];
  load_bytes(block + 2 + unit * 16, words);
  load_bytes(block + 10 + unit * 16, words + 2);
  for (int j = 0; j < 16; ++j) v[j] = scale * (float)((FIELD(words, j, 0, 255) ^ 128) - 128);
}
#define FORMAT q8_0
#include "block_kernels.inc"

DEVFN int run_q4_0(int unit) { return unit * 8; }
DEVFN void unpack_q4_0(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block);
  U32 words[2];
  load_bytes(block + 2 + unit * 8, words);
  for (int j = 0; j < 8; ++j) {
    v[j] = scale * (float)(FIELD(words, j, 0, 15) - 8);
    v[8 + j] = scale * (float)(FIELD(words, j, 4, 15) - 8);
  }
}
#define FORMAT q4_0
#include "block_kernels.inc"

DEVFN int run_q4_1(int unit) { return unit * 8; }
DEVFN void unpack_q4_1(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block), least = half_at(block + 2);
  U32 words[2];
  load_bytes(block + 4 + unit * 8, words);
  for (int j = 0; j < 8; ++j) {
    v[j] = SCALED(scale, FIELD(words, j, 0, 15), least);
    v[8 + j] = SCALED(scale, FIELD(words, j, 4, 15), least);
  }
}
#define FORMAT q4_1
#include "block_kernels.inc"

// The fifth bits of 32 values, starting with that of the unit's first value.
DEVFN U32 fifth_bits(GLOBAL const U8* p, int unit) {
  GLOBAL const U16* pairs = (GLOBAL const U16*)p;
  return ((U32)pairs[0] | (U32)pairs[1] << 16) >> unit * 8;
}

DEVFN int run_q5_0(int unit) { return unit * 8; }
DEVFN void unpack_q5_0(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block);
  const U32 fifth = fifth_bits(block + 2, unit);
  U32 words[2];
  load_bytes(block + 6 + unit * 8, words);
  for (int j = 0; j < 8; ++j) {
    v[j] = scale * (float)((FIELD(words, j, 0, 15) | (int)(fifth >> j & 1) << 4) - 16);
    v[8 + j] = scale * (float)((FIELD(words, j, 4, 15) | (int)(fifth >> (j + 16) & 1) << 4) - 16);
  }
}
#define FORMAT q5_0
#include "block_kernels.inc"

DEVFN int run_q5_1(int unit) { return unit * 8; }
DEVFN void unpack_q5_1(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block), least = half_at(block + 2);
  const U32 fifth = fifth_bits(block + 4, unit);
  U32 words[2];
  load_bytes(block + 8 + unit * 8, words);
  for (int j = 0; j < 8; ++j) {
    v[j] = SCALED(scale, FIELD(words, j, 0, 15) | (int)(fifth >> j & 1) << 4, least);
    v[8 + j] = SCALED(scale, FIELD(words, j, 4, 15) | (int)(fifth >> (j + 16) & 1) << 4, least);
  }
}
#define FORMAT q5_1
#include "block_kernels.inc"

// A signed byte of these sixteen.
DEVFN float signed_byte(const U32* words, int j) { return (float)((FIELD(words, j, 0, 255) ^ 128) - 128); }

DEVFN float iq4_nl_value(int q) {
  const U32 words[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
  return signed_byte(words, q);
}
DEVFN int run_iq4_nl(int unit) { return unit * 8; }
DEVFN void unpack_iq4_nl(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block);
  U32 words[2];
  load_bytes(block + 2 + unit * 8, words);
  for (int j = 0; j < 8; ++j) {
    v[j] = scale * iq4_nl_value(FIELD(words, j, 0, 15));
    v[8 + j] = scale * iq4_nl_value(FIELD(words, j, 4, 15));
  }
}
#define FORMAT iq4_nl
#include "block_kernels.inc"

// mxfp4: the scale is half of 2^(e - 127), since FP4's values are doubled.
DEVFN float mxfp4_value(int q) {
  const U32 words[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
  return signed_byte(words, q);
}
DEVFN int run_mxfp4(int unit) { return unit * 8; }
DEVFN void unpack_mxfp4(GLOBAL const U8* block, int unit, float* v) {
  const U32 e = block[0];
  const float scale = AS_FLOAT(e < 2 ? (e + 1) << 21 : (e - 1) << 23);
  for (int j = 0; j < 8; ++j) {
    const int both = block[1 + unit * 8 + j];
    v[j] = scale * mxfp4_value(both & 15);
    v[8 + j] = scale * mxfp4_value(both >> 4);
  }
}
#define FORMAT mxfp4
#include "block_kernels.inc"

// ---- blocks of 256, whose sub-blocks of 16 or 32 have their own scales ----

// q2_k and q3_k: 32 bytes hold 128 values: the lowest two bits of each byte hold the first 32, and so on.
DEVFN int run_q2_k(int unit) { return unit / 8 * 128 + unit / 4 % 2 * 64 + unit % 4 * 8; }
DEVFN int run_q3_k(int unit) { return run_q2_k(unit); }

DEVFN void unpack_q2_k(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block + 80), offset = half_at(block + 82);
  const int sub = run_q2_k(unit) / 16, shift = unit / 4 % 2 * 4;
  const int first = block[sub], second = block[sub + 2];
  const float scales[2] = {MUL_ROUNDED(scale, (float)(first & 15)), MUL_ROUNDED(scale, (float)(second & 15))};
  const float least[2] = {-MUL_ROUNDED(offset, (float)(first >> 4)),
                          -MUL_ROUNDED(offset, (float)(second >> 4))};
  U32 words[2];
  load_bytes(block + 16 + unit / 8 * 32 + unit % 4 * 8, words);
  for (int j = 0; j < 8; ++j) {
    v[j] = SCALED(scales[0], FIELD(words, j, shift, 3), least[0]);
    v[8 + j] = SCALED(scales[1], FIELD(words, j, shift + 2, 3), least[1]);
  }
}
#define FORMAT q2_k
#include "block_kernels.inc"

DEVFN int scale_q3_k(GLOBAL const U8* block, int sub) {
  const int low = block[96 + sub % 8] >> (sub / 8 * 4) & 15, high = block[104 + sub % 4] >> (sub / 4 * 2) & 3;
  return (low | high << 4) - 32;
}
DEVFN void unpack_q3_k(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block + 108);
  const int run = run_q3_k(unit), sub = run / 16, shift = unit / 4 % 2 * 4, bit = run / 32;
  const float scales[2] = {scale * (float)scale_q3_k(block, sub), scale * (float)scale_q3_k(block, sub + 2)};
  U32 words[2], high[2];
  load_bytes(block + 32 + unit / 8 * 32 + unit % 4 * 8, words);
  load_bytes(block + unit % 4 * 8, high);
  for (int j = 0; j < 8; ++j) {
    v[j] = scales[0] * (float)((FIELD(words, j, shift, 3) | FIELD(high, j, bit, 1) << 2) - 4);
    v[8 + j] = scales[1] * (float)((FIELD(words, j, shift + 2, 3) | FIELD(high, j, bit + 1, 1) << 2) - 4);
  }
}
#define FORMAT q3_k
#include "block_kernels.inc"

// q4_k and q5_k: 32 bytes hold 64 values. There are eight six-bit scales and offsets; those of the last four
// are split between two places.
DEVFN int run_q4_k(int unit) { return unit / 4 * 64 + unit % 4 * 8; }
DEVFN int run_q5_k(int unit) { return run_q4_k(unit); }

DEVFN int scale_q4_k(GLOBAL const U8* block, int sub) {
  return sub < 4 ? block[4 + sub] & 63 : (block[8 + sub] & 15) | block[sub] >> 6 << 4;
}
DEVFN int offset_q4_k(GLOBAL const U8* block, int sub) {
  return sub < 4 ? block[8 + sub] & 63 : block[8 + sub] >> 4 | block[4 + sub] >> 6 << 4;
}
DEVFN void scales_q4_k(GLOBAL const U8* block, int sub, float* scales, float* least) {
  const float scale = half_at(block), offset = half_at(block + 2);
  for (int n = 0; n < 2; ++n) {
    scales[n] = MUL_ROUNDED(scale, (float)scale_q4_k(block, sub + n));
    least[n] = -MUL_ROUNDED(offset, (float)offset_q4_k(block, sub + n));
  }
}

DEVFN void unpack_q4_k(GLOBAL const U8* block, int unit, float* v) {
  float scales[2], least[2];
  scales_q4_k(block, unit / 4 * 2, scales, least);
  U32 words[2];
  load_bytes(block + 16 + unit / 4 * 32 + unit % 4 * 8, words);
  for (int j = 0; j < 8; ++j) {
    v[j] = SCALED(scales[0], FIELD(words, j, 0, 15), least[0]);
    v[8 + j] = SCALED(scales[1], FIELD(words, j, 4, 15), least[1]);
  }
}
#define FORMAT q4_k
#include "block_kernels.inc"

DEVFN void unpack_q5_k(GLOBAL const U8* block, int unit, float* v) {
  const int sub = unit / 4 * 2;
  float scales[2], least[2];
  scales_q4_k(block, sub, scales, least);
  U32 words[2], fifth[2];
  load_bytes(block + 48 + unit / 4 * 32 + unit % 4 * 8, words);
  load_bytes(block + 16 + unit % 4 * 8, fifth);
  for (int j = 0; j < 8; ++j) {
    v[j] = SCALED(scales[0], FIELD(words, j, 0, 15) | FIELD(fifth, j, sub, 1) << 4, least[0]);
    v[8 + j] = SCALED(scales[1], FIELD(words, j, 4, 15) | FIELD(fifth, j, sub + 1, 1) << 4, least[1]);
  }
}
#define FORMAT q5_k
#include "block_kernels.inc"

// q6_k: 64 bytes hold the low four bits of 128 values, 32 other bytes their high two.
DEVFN int run_q6_k(int unit) { return unit / 8 * 128 + unit % 8 * 8; }

DEVFN float scale_q6_k(GLOBAL const U8* block, int sub) {
  return half_at(block + 208) * (float)((block[192 + sub] ^ 128) - 128);
}
DEVFN void unpack_q6_k(GLOBAL const U8* block, int unit, float* v) {
  const int sub = run_q6_k(unit) / 16, shift = unit % 8 / 4 * 2;
  const float scales[2] = {scale_q6_k(block, sub), scale_q6_k(block, sub + 4)};
  U32 words[2], high[2];
  load_bytes(block + unit / 8 * 64 + unit % 8 * 8, words);
  load_bytes(block + 128 + unit / 8 * 32 + unit % 4 * 8, high);
  for (int j = 0; j < 8; ++j) {
    v[j] = scales[0] * (float)((FIELD(words, j, 0, 15) | FIELD(high, j, shift, 3) << 4) - 32);
    v[8 + j] = scales[1] * (float)((FIELD(words, j, 4, 15) | FIELD(high, j, shift + 4, 3) << 4) - 32);
  }
}
#define FORMAT q6_k
#include "block_kernels.inc"

// iq4_xs: the values of iq4_nl; six-bit scales, whose upper two bits are in a word of their own.
DEVFN int run_iq4_xs(int unit) { return unit / 2 * 32 + unit % 2 * 8; }
DEVFN int scale_iq4_xs(GLOBAL const U8* block, int sub) {
  const int low = block[4 + sub / 2] >> (sub % 2 * 4) & 15, high = block[2 + sub / 4] >> (sub % 4 * 2) & 3;
  return (low | high << 4) - 32;
}
DEVFN void unpack_iq4_xs(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block) * (float)scale_iq4_xs(block, unit / 2);
  U32 words[2];
  load_bytes(block + 8 + unit * 8, words);
  for (int j = 0; j < 8; ++j) {
    v[j] = scale * iq4_nl_value(FIELD(words, j, 0, 15));
    v[8 + j] = scale * iq4_nl_value(FIELD(words, j, 4, 15));
  }
}
#define FORMAT iq4_xs
#include "block_kernels.inc"

// tq2_0: the bits of q2_k, with one scale.
DEVFN int run_tq2_0(int unit) { return run_q2_k(unit); }
DEVFN void unpack_tq2_0(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block + 64);
  const int shift = unit / 4 % 2 * 4;
  U32 words[2];
  load_bytes(block + unit / 8 * 32 + unit % 4 * 8, words);
  for (int j = 0; j < 8; ++j) {
    v[j] = scale * (float)(FIELD(words, j, shift, 3) - 1);
    v[8 + j] = scale * (float)(FIELD(words, j, shift + 2, 3) - 1);
  }
}
#define FORMAT tq2_0
#include "block_kernels.inc"

// tq1_0: bytes are fractions of 256 with five ternary digits. 32 bytes have the first 160 values, 16 bytes
// the next 80. Four bytes, with four digits each, have the last 16.
DEVFN int ternary_digit(int byte, int number) {
  const int power = number == 0 ? 1 : number == 1 ? 3 : number == 2 ? 9 : number == 3 ? 27 : 81;
  return (byte * power & 255) * 3 >> 8;
}
DEVFN int run_tq1_0(int unit) { return unit * 16; }
DEVFN void unpack_tq1_0(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block + 52);
  GLOBAL const U8* from = block + (unit < 10 ? unit % 2 * 16 : unit < 15 ? 32 : 48);
  const int number = unit < 10 ? unit / 2 : unit - 10;
  for (int j = 0; j < 16; ++j) {
    const int digit = unit < 15 ? ternary_digit(from[j], number) : ternary_digit(from[j % 4], j / 4);
    v[j] = scale * (float)(digit - 1);
  }
}
#define FORMAT tq1_0
#include "block_kernels.inc"

// ---- blocks of 256 values that are vectors of a codebook (codebooks.h) ----
// A vector has eight values (iq1, iq2) or four (iq3), each the number of a level. A sub-block has 2 s + 1
// steps. Of iq2 and iq3, values are positive, and have a sign each; in iq1, 1 is added to a vector, or -1.

DEVFN int level_iq2(U32 number) { return (int)(0x2b1908u >> number * 8 & 255); }
DEVFN int level_iq3_xxs(U32 number) { return (int)(number * 8 + (number == 7 ? 6 : 4)); }
DEVFN int level_iq3_s(U32 number) { return (int)(number * 2 + 1); }
DEVFN int level_iq1(U32 number) { return (int)number * 8 - 8; }

DEVFN U32 word_of_pairs(GLOBAL const U8* p) {
  GLOBAL const U16* pairs = (GLOBAL const U16*)p;
  return (U32)pairs[0] | (U32)pairs[1] << 16;
}
DEVFN U32 pair_of_bytes(GLOBAL const U8* p) { return *(GLOBAL const U16*)p; }
DEVFN U32 nibble_of(GLOBAL const U8* p, int i) { return (U32)p[i / 2] >> (i % 2 * 4) & 15; }

// The eighth of eight signs makes the number of ones even.
DEVFN U32 eight_signs(U32 seven) {
  U32 odd = seven ^ seven >> 4;
  odd ^= odd >> 2;
  return seven | ((odd ^ odd >> 1) & 1) << 7;
}

// `count` values of a vector from v on, each of 16 / count bits, with their signs.
#define PUT_VECTOR(v, count, vector, level, scale, signs)                            \
  for (int i = 0; i < count; ++i) {                                                  \
    const int value = level((vector) >> (16 / count * i) & ((1 << 16 / count) - 1)); \
    (v)[i] = (scale) * (float)((signs) >> i & 1 ? -value : value);                   \
  }
#define PUT_SUM(v, vector, scale, negative) \
  for (int i = 0; i < 8; ++i)               \
    (v)[i] = (scale) * (float)(level_iq1((vector) >> (2 * i) & 3) + ((negative) ? -1 : 1));

DEVFN int run_iq3_xxs(int unit) { return unit * 16; }
DEVFN void unpack_iq3_xxs(GLOBAL const U8* block, int unit, float* v) {
  const U32 word = word_of_pairs(block + 66 + unit / 2 * 4);
  const float scale = half_at(block) * 0.25f * (float)(2 * (word >> 28) + 1);
  for (int n = 0; n < 4; ++n) {
    const U32 signs = eight_signs(word >> ((unit % 2 * 2 + n / 2) * 7) & 127) >> n % 2 * 4;
    PUT_VECTOR(v + 4 * n, 4, book_iq3_xxs[block[2 + unit * 4 + n]], level_iq3_xxs, scale, signs)
  }
}
#define FORMAT iq3_xxs
#include "block_kernels.inc"

DEVFN int run_iq3_s(int unit) { return unit * 16; }
DEVFN void unpack_iq3_s(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block) * (float)(2 * nibble_of(block + 106, unit / 2) + 1);
  for (int n = 0; n < 4; ++n) {
    const int number = unit * 4 + n;
    const U32 index = block[2 + number] | ((U32)block[66 + number / 8] >> number % 8 & 1) << 8;
    const U32 signs = (U32)block[74 + number / 2] >> n % 2 * 4;
    PUT_VECTOR(v + 4 * n, 4, book_iq3_s[index], level_iq3_s, scale, signs)
  }
}
#define FORMAT iq3_s
#include "block_kernels.inc"

DEVFN int run_iq2_xxs(int unit) { return unit * 16; }
DEVFN void unpack_iq2_xxs(GLOBAL const U8* block, int unit, float* v) {
  GLOBAL const U8* group = block + 2 + unit / 2 * 8;
  const U32 word = word_of_pairs(group + 4);
  const float scale = half_at(block) * 0.125f * (float)(2 * (word >> 28) + 1);
  for (int n = 0; n < 2; ++n) {
    const int number = unit % 2 * 2 + n;
    const U32 signs = eight_signs(word >> (number * 7) & 127);
    PUT_VECTOR(v + 8 * n, 8, book_iq2_xxs[group[number]], level_iq2, scale, signs)
  }
}
#define FORMAT iq2_xxs
#include "block_kernels.inc"

DEVFN int run_iq2_xs(int unit) { return unit * 16; }
DEVFN void unpack_iq2_xs(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block) * 0.125f * (float)(2 * nibble_of(block + 66, unit) + 1);
  for (int n = 0; n < 2; ++n) {
    const U32 both = pair_of_bytes(block + 2 + unit * 4 + n * 2), signs = eight_signs(both >> 9);
    PUT_VECTOR(v + 8 * n, 8, book_iq2_xs[both & 511], level_iq2, scale, signs)
  }
}
#define FORMAT iq2_xs
#include "block_kernels.inc"

DEVFN int run_iq2_s(int unit) { return unit * 16; }
DEVFN void unpack_iq2_s(GLOBAL const U8* block, int unit, float* v) {
  const float scale = half_at(block) * 0.125f * (float)(2 * nibble_of(block + 74, unit) + 1);
  for (int n = 0; n < 2; ++n) {
    const int number = unit * 2 + n;
    const U32 index = block[2 + number] | ((U32)block[66 + number / 4] >> (number % 4 * 2) & 3) << 8;
    const U32 signs = block[34 + number];
    PUT_VECTOR(v + 8 * n, 8, book_iq2_s[index], level_iq2, scale, signs)
  }
}
#define FORMAT iq2_s
#include "block_kernels.inc"

DEVFN int run_iq1_s(int unit) { return unit * 16; }
DEVFN void unpack_iq1_s(GLOBAL const U8* block, int unit, float* v) {
  const U32 word = pair_of_bytes(block + 34 + unit / 2 * 2);
  const float scale = half_at(block) * 0.125f * (float)(2 * (word >> 12 & 7) + 1);
  for (int n = 0; n < 2; ++n) {
    const int number = unit * 2 + n;
    const U32 index = block[2 + number] | (word >> (number % 4 * 3) & 7) << 8;
    PUT_SUM(v + 8 * n, book_iq1[index], scale, word >> 15)
  }
}
#define FORMAT iq1_s
#include "block_kernels.inc"

// A float16 from its bits.
DEVFN float half_of_bits(U32 bits) {
  const U32 exponent = bits >> 10 & 31, rest = bits & 1023;
  const float size = exponent == 0    ? (float)rest * AS_FLOAT(0x33800000u)  // 2^-24
                     : exponent == 31 ? AS_FLOAT(0x7f800000u | rest << 13)
                                      : AS_FLOAT((exponent + 112) << 23 | rest << 13);
  return bits >> 15 ? -size : size;
}

// iq1_m: four words have four scales each, and above them a nibble of the block's float16.
DEVFN int run_iq1_m(int unit) { return unit * 16; }
DEVFN void unpack_iq1_m(GLOBAL const U8* block, int unit, float* v) {
  U32 bits = 0;
  for (int i = 0; i < 4; ++i) bits |= pair_of_bytes(block + 48 + 2 * i) >> 12 << 4 * i;
  const U32 s = pair_of_bytes(block + 48 + unit / 4 * 2) >> (unit % 4 * 3) & 7;
  const float scale = half_of_bits(bits) * 0.125f * (float)(2 * s + 1);
  for (int n = 0; n < 2; ++n) {
    const U32 upper = nibble_of(block + 32, unit * 2 + n);
    PUT_SUM(v + 8 * n, book_iq1[block[unit * 2 + n] | (upper & 7) << 8], scale, upper >> 3)
  }
}
#define FORMAT iq1_m
#include "block_kernels.inc"

#endif
