// What a block of each stored format holds: codes of one byte, a scale for every kGroup of them, and where
// kMins says so a number to add; else a value is scale * (code - kOffset). Blocks of 256 values are read in
// chunks of 32. Formats.py says what each byte means.

INLINE float half(const uint8_t* p) {  // see load() of Float16
  const uint32_t bits = p[0] | p[1] << 8, magnitude = (bits & 0x7fff) << 13;
  const uint32_t wide = magnitude >= 0x7c00u << 13 ? magnitude | 0x7f800000 : magnitude;
  float value;
  __builtin_memcpy(&value, &wide, 4);
  value = magnitude == wide ? value * 0x1p112f : value;
  return bits & 0x8000 ? -value : value;
}

template <Format kFormat, int kGroupOf, int kLargestOf, int kOffsetOf, bool kMinsOf = false>
struct Coding {
  static constexpr int kValues = kBlocks[kFormat].values, kBytes = kBlocks[kFormat].bytes;
  static constexpr int kGroup = kGroupOf, kOffset = kOffsetOf;
  static constexpr int kLargest = kLargestOf;  // code
  static constexpr int kGroups = 32 / kGroup;  // of a chunk
  static constexpr bool kMins = kMinsOf;
};

// GCC takes loops over bytes that may overlap apart, so 16 of them are a vector here.
typedef uint8_t Codes __attribute__((vector_size(16)));
typedef uint8_t CodesInMemory __attribute__((vector_size(16), aligned(1), may_alias));
INLINE Codes load_codes(const uint8_t* p) { return *reinterpret_cast<const CodesInMemory*>(p); }
INLINE void store(uint8_t* p, Codes v) { *reinterpret_cast<CodesInMemory*>(p) = v; }

// 16 values in the low halves of bytes, then 16 in the high ones
INLINE void nibbles(uint8_t* to, const uint8_t* q) {
  const Codes both = load_codes(q);
  store(to, both & (uint8_t)15);
  store(to + 16, both >> 4);
}

// The fifth bits of 32 values, from a word: each byte of it is repeated for eight values, which keep a bit
// each; adding makes that the highest one.
INLINE void fifth_bits(uint8_t* to, const uint8_t* bits) {
  constexpr uint64_t kEach = 0x0101010101010101u;
  for (int i = 0; i < 4; ++i) {
    const uint64_t bit = bits[i] * kEach & 0x8040201008040201u;
    const uint64_t highest = ((bit & 0x7f * kEach) + 0x7f * kEach) | bit;
    const uint64_t fifth = highest >> 3 & 0x10 * kEach;
    uint64_t eight;
    __builtin_memcpy(&eight, to + 8 * i, 8);
    eight |= fifth;
    __builtin_memcpy(to + 8 * i, &eight, 8);
  }
}

// Codes of a whole byte are signed where the dot products want that.
#ifdef DOT_U8_I8
constexpr int kSignedOffset = 128;
#else
constexpr int kSignedOffset = 0;
#endif
constexpr int kSigned = 128;  // as kLargest: the code is signed, or was until kSignedOffset was added

struct Q8_0 : Coding<kQ8_0, 32, kSigned, kSignedOffset> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int) {
    for (int i = 0; i < 32; ++i) to[i] = block[2 + i] ^ kSignedOffset;
  }
  INLINE static void scales(float* scale, float*, const uint8_t* block, int) { *scale = half(block); }
};

struct Q4_0 : Coding<kQ4_0, 32, 15, 8> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int) { nibbles(to, block + 2); }
  INLINE static void scales(float* scale, float*, const uint8_t* block, int) { *scale = half(block); }
};

struct Q4_1 : Coding<kQ4_1, 32, 15, 0, true> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int) { nibbles(to, block + 4); }
  INLINE static void scales(float* scale, float* min, const uint8_t* block, int) {
    *scale = half(block);
    *min = half(block + 2);
  }
};

struct Q5_0 : Coding<kQ5_0, 32, 31, 16> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int) {
    nibbles(to, block + 6);
    fifth_bits(to, block + 2);
  }
  INLINE static void scales(float* scale, float*, const uint8_t* block, int) { *scale = half(block); }
};

struct Q5_1 : Coding<kQ5_1, 32, 31, 0, true> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int) {
    nibbles(to, block + 8);
    fifth_bits(to, block + 4);
  }
  INLINE static void scales(float* scale, float* min, const uint8_t* block, int) {
    *scale = half(block);
    *min = half(block + 2);
  }
};

// Of 16 levels, by their numbers.
INLINE Codes looked_up(Codes levels, Codes numbers) {
#ifdef LOOK_UP
  return (Codes)LOOK_UP(levels, numbers);
#else
  Codes found;
  for (int i = 0; i < 16; ++i) found[i] = levels[numbers[i]];
  return found;
#endif
}

struct IQ4_NL : Coding<kIQ4_NL, 32, kSigned, kSignedOffset> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int) {
    typedef int8_t Levels __attribute__((vector_size(16)));
    const Codes levels =
        (Codes)Levels{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const Codes both = load_codes(block + 2), of_codes = levels ^ (uint8_t)kSignedOffset;
    store(to, looked_up(of_codes, both & (uint8_t)15));
    store(to + 16, looked_up(of_codes, both >> 4));
  }
  INLINE static void scales(float* scale, float*, const uint8_t* block, int) { *scale = half(block); }
};

// 2 bits of each of 32 bytes, of which there are 64 for each half of a block
INLINE void pairs_of_bits(uint8_t* to, const uint8_t* q, int chunk) {
  const uint8_t* from = q + chunk / 4 * 32;
  for (int i = 0; i < 32; ++i) to[i] = from[i] >> chunk % 4 * 2 & 3;
}

struct Q2_K : Coding<kQ2_K, 16, 3, 0, true> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int chunk) {
    pairs_of_bits(to, block + 16, chunk);
  }
  INLINE static void scales(float* scale, float* min, const uint8_t* block, int chunk) {
    const float d = half(block + 80), least = half(block + 82);
    for (int g = 0; g < 2; ++g) {
      scale[g] = d * (block[2 * chunk + g] & 15);
      min[g] = -least * (block[2 * chunk + g] >> 4);
    }
  }
};

struct Q3_K : Coding<kQ3_K, 16, 7, 4> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int chunk) {
    pairs_of_bits(to, block + 32, chunk);
    for (int i = 0; i < 32; ++i) to[i] |= (block[i] >> chunk & 1) << 2;
  }
  INLINE static void scales(float* scale, float*, const uint8_t* block, int chunk) {
    const uint8_t* packed = block + 96;
    const float d = half(block + 108);
    for (int g = 0; g < 2; ++g) {
      const int j = 2 * chunk + g, low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
      scale[g] = d * ((low | (packed[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32);
    }
  }
};

// scale and minimum, 6 bits each, of the eight chunks of a block; `packed` is 12 bytes
INLINE void six_bits(float* scale, float* min, const uint8_t* block, const uint8_t* packed, int chunk) {
  const uint8_t* p = packed + chunk;
  const int s = chunk < 4 ? p[0] & 63 : (p[4] & 15) | p[-4] >> 6 << 4;
  const int m = chunk < 4 ? p[4] & 63 : p[4] >> 4 | p[0] >> 6 << 4;
  *scale = half(block) * s;
  *min = -half(block + 2) * m;
}

INLINE void nibbles_of_chunk(uint8_t* to, const uint8_t* q, int chunk) {
  const uint8_t* from = q + chunk / 2 * 32;
  for (int i = 0; i < 32; ++i) to[i] = from[i] >> chunk % 2 * 4 & 15;
}

struct Q4_K : Coding<kQ4_K, 32, 15, 0, true> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int chunk) {
    nibbles_of_chunk(to, block + 16, chunk);
  }
  INLINE static void scales(float* scale, float* min, const uint8_t* block, int chunk) {
    six_bits(scale, min, block, block + 4, chunk);
  }
};

struct Q5_K : Coding<kQ5_K, 32, 31, 0, true> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int chunk) {
    nibbles_of_chunk(to, block + 48, chunk);
    for (int i = 0; i < 32; ++i) to[i] |= (block[16 + i] >> chunk & 1) << 4;
  }
  INLINE static void scales(float* scale, float* min, const uint8_t* block, int chunk) {
    six_bits(scale, min, block, block + 4, chunk);
  }
};

struct Q6_K : Coding<kQ6_K, 16, 63, 32> {
  INLINE static void codes(uint8_t* to, const uint8_t* block, int chunk) {
    const uint8_t* low = block + chunk / 4 * 64 + chunk % 2 * 32;
    const uint8_t* high = block + 128 + chunk / 4 * 32;
    for (int i = 0; i < 32; ++i)
      to[i] = (low[i] >> chunk % 4 / 2 * 4 & 15) | (high[i] >> chunk % 4 * 2 & 3) << 4;
  }
  INLINE static void scales(float* scale, float*, const uint8_t* block, int chunk) {
    const float d = half(block + 208);
    for (int g = 0; g < 2; ++g) scale[g] = d * static_cast<int8_t>(block[192 + 2 * chunk + g]);
  }
};

// Values [from, from + n) of a row; both are multiples of 32.
template <class F>
void floats_of(float* to, const char* row, int64_t from, int64_t n) {
  constexpr int kPerBlock = F::kValues / 32;
  for (int64_t c = from / 32; c < (from + n) / 32; ++c, to += 32) {
    const auto* const block = reinterpret_cast<const uint8_t*>(row) + c / kPerBlock * F::kBytes;
    uint8_t codes[32];
    float scale[2] = {}, min[2] = {};
    F::codes(codes, block, c % kPerBlock);
    F::scales(scale, min, block, c % kPerBlock);
    for (int i = 0; i < 32; ++i) {
      const int code =
          F::kLargest == kSigned ? static_cast<int8_t>(codes[i] ^ kSignedOffset) : codes[i] - F::kOffset;
      to[i] = scale[i / F::kGroup] * code + min[i / F::kGroup];
    }
  }
}
