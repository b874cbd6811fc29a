// Converts stored values to float32 and back, bit for bit as `gguf` does. Codes are unpacked as for products.
// Every product here is exact, so an addition gives the same result with or without an intermediate rounding.
#ifndef AIRLLM_CONVERSIONS_INL
#define AIRLLM_CONVERSIONS_INL
#include "blocks/blocks_32.inl"
#include "blocks/blocks_codebook.inl"
#include "gemv/gemv_256.inl"
#include "pack.inl"

namespace cpu::ISA {
namespace {
namespace stored {

// LANES signed bytes.
INLINE Int widen_bytes(const char* p) {
#ifdef WIDEN_I8
  return WIDEN_I8(p);
#else
  return __builtin_convertvector(*reinterpret_cast<const LanesOfBytesInMemory*>(p), Int);
#endif
}

// LANES values scale (code - zero) + offset.
INLINE void decode_lanes(float* out, const char* codes, int zero, float scale, float offset) {
  store(out, to_float(widen_bytes(codes) - zero) * scale + offset);
}

// kGroup blocks of 32.
template <class F>
INLINE void decode_group(float* out, const char* p) {
  const Pair q = F::unpack(p);
  alignas(64) char codes[2][4 * LANES];
  *reinterpret_cast<BytesInMemory*>(codes[0]) = q.first;
  *reinterpret_cast<BytesInMemory*>(codes[1]) = q.second;
  for (int b = 0; b < kGroup; ++b, p += F::kBytes, out += 32) {
    const float scale = F::scale_of(p), offset = F::kOffset ? half_at(p + 2) : -0.f;
    for (int i = 0; i < 32; i += LANES)
      decode_lanes(out + i, codes[i / 16] + 16 * b + i % 16, F::kSigned ? 0 : F::kZero, scale, offset);
  }
}

template <class F>
void decode_groups(float* out, const char* p, int64_t n) {
  constexpr int64_t kValues = 32 * kGroup;
  for (; n >= kValues; n -= kValues, out += kValues, p += kGroup * F::kBytes) decode_group<F>(out, p);
  if (n <= 0) return;
  char padded[kGroup * F::kBytes] = {};
  float last[kValues];
  __builtin_memcpy(padded, p, n / 32 * F::kBytes);
  decode_group<F>(last, padded);
  __builtin_memcpy(out, last, sizeof(float) * n);
}

// A block of 256.
template <class F>
INLINE void decode_block(float* out, const char* p) {
  const SubBlocks<F::kUnit> sub = F::sub_blocks(p);
  const float scale = half_at(p + F::kScale), offset_scale = half_at(p + F::kOffsetScale);
#pragma GCC unroll 8  // makes v a constant
  for (int v = 0; v < F::kLowBytes / kStep; ++v) {
    const Bytes low = load_bytes(p + F::kLow + v * kStep);
    for (int f = 0; f < F::kFields; ++f) {
      alignas(64) char codes[4 * LANES];
      *reinterpret_cast<BytesInMemory*>(codes) = F::unpack(low, p, v, f);
      for (int piece = 0; piece < kGroup; ++piece) {
        const int place = (v * F::kFields + f) * kGroup + piece, number = order<F>.sub_block[place];
        const float by = scale * sub.scales[number / 8][number % 8];
        const float offset = F::kOffset ? -(offset_scale * sub.offsets[number / 8][number % 8]) : -0.f;
        for (int i = 0; i < 16; i += LANES)
          decode_lanes(out + 16 * order<F>.unit[place] + i, codes + 16 * piece + i, F::kZero, by, offset);
      }
    }
  }
}

// A block of 256 signed codes.
template <class F>
INLINE void decode_codes(float* out, const char* p) {
  const CodesInMemory256<F> all(p);
  for (int c = 0; c < 8; ++c) {
    float scales[2];
    F::scales(scales, nullptr, reinterpret_cast<const uint8_t*>(p), c);
    for (int i = 32 * c; i < 32 * c + 32; i += LANES)
      decode_lanes(out + i, reinterpret_cast<const char*>(all.codes) + i, 0, scales[i % 32 / F::kUnit], -0.f);
  }
}

template <class F>
void decode(float* out, const char* p, int64_t n) {
  if constexpr (F::kValues == 32) return decode_groups<F>(out, p, n);
  for (; n; n -= 256, out += 256, p += F::kBytes) {
    if constexpr (F::kValues == 256 && F::kSigned)
      decode_codes<F>(out, p);
    else if constexpr (F::kValues == 256)
      decode_block<F>(out, p);
  }
}

template <class T>
void widen_all(float* out, const void* x, int64_t n) {
  map(out, n, Identity{}, static_cast<const T*>(x));
}

void widen(DType dtype, float* out, const void* x, int64_t n) {
  if (dtype == kFloat32) return widen_all<float>(out, x, n);
  if (dtype == kFloat16) return widen_all<Float16>(out, x, n);
  widen_all<BFloat16>(out, x, n);
}

void dequantize(Format format, float* out, const char* p, int64_t n) {
  switch (format) {
    case kF32:
    case kF16:
    case kBF16:
      return widen(static_cast<DType>(format), out, p, n);
#define FORMAT(name, ...) \
  case k##name:           \
    return decode<name>(out, p, n);
      AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
    case kFormats:
      break;
  }
}

// float32 to blocks of 32, with scales from the largest numbers. pack.inl has the quantizers that search.

// As NumPy does it: the low 8 bits of an integer; any bits for a NaN.
INLINE int least_byte(float v) {
  return v > -2147483648.f && v < 2147483648.f ? static_cast<int32_t>(v) & 255 : 0;
}
INLINE int at_most(int most, int v) { return v < most ? v : most; }

INLINE void encode_bytes(char* p, const float* x) {
  float most = 0.f;
  for (int i = 0; i < 32; ++i) {
    const float size = __builtin_fabsf(x[i]);
    most = size > most || size != size ? size : most;
    if (most != most) break;
  }
  const float scale = most / 127.f, inverse = scale == 0.f ? 0.f : 1.f / scale;
  store_half(p, scale);
  for (int i = 0; i < 32; ++i) {
    const float v = x[i] * inverse, size = __builtin_fabsf(v), whole = __builtin_floorf(size);
    const float away = whole + __builtin_floorf(2.f * (size - whole));
    p[2 + i] = static_cast<char>(least_byte(v < 0.f ? -away : away));
  }
}

// The codes of 32 values: nibbles, and fifth bits if the format has them.
template <class F>
INLINE void store_nibbles(char* p, const int* q) {
  if (F::kFifth) {
    uint32_t fifth = 0;
    for (int i = 0; i < 32; ++i) fifth |= static_cast<uint32_t>(q[i] >> 4) << i;
    __builtin_memcpy(p + F::kFifth, &fifth, 4);
  }
  for (int i = 0; i < 16; ++i) p[F::kLow + i] = static_cast<char>((q[i] & 15) | (q[i + 16] & 15) << 4);
}

// The value of largest magnitude, or the first of several, becomes the smallest q.
template <class F>
INLINE void encode_centred(char* p, const float* x) {
  float largest = x[0];
  for (int i = 1; i < 32 && largest == largest; ++i)
    if (__builtin_fabsf(x[i]) > __builtin_fabsf(largest) || x[i] != x[i]) largest = x[i];
  constexpr float kZero = F::kZero;
  const float scale = largest / -kZero, inverse = scale == 0.f ? 0.f : 1.f / scale;
  store_half(p, scale);
  int q[32];
  for (int i = 0; i < 32; ++i)
    q[i] = at_most(F::kLargest, least_byte(rounded(x[i] * inverse) + (kZero + 0.5f)));
  store_nibbles<F>(p, q);
}

template <class F>
INLINE void encode_from_least(char* p, const float* x) {
  float least = x[0], most = x[0];
  for (int i = 1; i < 32; ++i) {
    least = x[i] < least || x[i] != x[i] ? x[i] : least;
    most = x[i] > most || x[i] != x[i] ? x[i] : most;
    if (least != least) break;
  }
  const float scale = (most - least) / F::kLargest, inverse = scale == 0.f ? 0.f : 1.f / scale;
  store_half(p, scale);
  store_half(p + 2, least);
  int q[32];
  for (int i = 0; i < 32; ++i)
    q[i] = at_most(F::kLargest, least_byte(rounded((x[i] - least) * inverse) + 0.5f));
  store_nibbles<F>(p, q);
}

template <class F>
void encode(char* p, const float* x, int64_t n) {
  constexpr int kTogether = F::kFormat == kIQ4_NL ? LANES : 1;
  if constexpr (kBlocks[F::kFormat].has_quantizer)
    for (; n > 0; n -= kTogether * F::kValues, x += kTogether * F::kValues, p += kTogether * F::kBytes) {
      if constexpr (F::kFormat == kIQ4_NL)
        pack_iq4_nl(p, x, static_cast<int>(smaller(n / 32, LANES)));
      else if constexpr (kPackBlock<F::kFormat> != nullptr)
        kPackBlock<F::kFormat>(p, x);
      else if constexpr (F::kSigned)
        encode_bytes(p, x);
      else if constexpr (F::kOffset)
        encode_from_least<F>(p, x);
      else
        encode_centred<F>(p, x);
    }
}

void quantize(Format format, char* p, const float* x, int64_t n) {
  switch (format) {
#define FORMAT(name, ...) \
  case k##name:           \
    return encode<name>(p, x, n);
    AIRLLM_BLOCK_FORMATS(FORMAT)
#undef FORMAT
    default:
      break;
  }
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
