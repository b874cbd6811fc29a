// Blocks of 256 values ("K"): sub-blocks of 16 or 32, whose scales are small whole numbers. The bytes that
// hold the low bits of q are read as they lie, kFields fields of each; x is put into the order that this
// gives. The products of a block are added up as whole numbers.

// w = scale sub_scale (q - kZero), or scale sub_scale q - offset_scale sub_offset (kOffset).
struct SubBlocks {  // for each 16 values
  Sixteen scales, offsets;
};

// Not by way of memory: a load of what several stores have left there waits for all of them.
INLINE Sixteen sixteen(uint64_t low, uint64_t high) {
  typedef uint64_t Two __attribute__((vector_size(16)));
  return (Sixteen)Two{low, high};
}

INLINE Sixteen doubled(uint64_t eight) {  // each byte twice
  const Sixteen v = sixteen(eight, 0);
  return __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
}

INLINE uint32_t four_at(const char* p) {
  uint32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
}

// The six-bit scales and offsets of q4_k and q5_k.
INLINE SubBlocks six_bits(const char* p) {
  const uint32_t scale = four_at(p), offset = four_at(p + 4), rest = four_at(p + 8);
  const uint32_t scale_high = (rest & 0x0f0f0f0fu) | (scale >> 2 & 0x30303030u);
  const uint32_t offset_high = (rest >> 4 & 0x0f0f0f0fu) | (offset >> 2 & 0x30303030u);
  return {doubled((scale & 0x3f3f3f3fu) | static_cast<uint64_t>(scale_high) << 32),
          doubled((offset & 0x3f3f3f3fu) | static_cast<uint64_t>(offset_high) << 32)};
}

// unit(at, f): which 16 values of the block the field f of the 16 low bytes from `at` on holds.
// high(p, v): bytes whose bits, from kHighStep * f on, belong to field f of the v-th vector of low bytes.
constexpr int kStep = 4 * LANES;

struct Q4_K {
  static constexpr int kBytes = 144, kLow = 16, kLowBytes = 128, kFields = 2, kLowBits = 4, kHighBits = 0;
  static constexpr bool kOffset = true;
  static constexpr int kZero = 0, kScale = 0, kOffsetScale = 2, kHighStep = 0;
  static constexpr int unit(int at, int f) { return at / 32 * 4 + 2 * f + at / 16 % 2; }
  static INLINE Bytes high(const char*, int) { return Bytes{}; }
  static INLINE SubBlocks sub_blocks(const char* p) { return six_bits(p + 4); }
};
struct Q5_K {
  static constexpr int kBytes = 176, kLow = 48, kLowBytes = 128, kFields = 2, kLowBits = 4, kHighBits = 1;
  static constexpr bool kOffset = true;
  static constexpr int kZero = 0, kScale = 0, kOffsetScale = 2, kHighStep = 1;
  static constexpr int unit(int at, int f) { return Q4_K::unit(at, f); }
  static INLINE Bytes high(const char* p, int v) {
    const int chunk = v * kStep / 32;
    return shifted_pair(p + 16, v % 2, 2 * chunk, 2 * chunk + 2);
  }
  static INLINE SubBlocks sub_blocks(const char* p) { return six_bits(p + 4); }
};
struct Q2_K {
  static constexpr int kBytes = 84, kLow = 16, kLowBytes = 64, kFields = 4, kLowBits = 2, kHighBits = 0;
  static constexpr bool kOffset = true;
  static constexpr int kZero = 0, kScale = 80, kOffsetScale = 82, kHighStep = 0;
  static constexpr int unit(int at, int f) { return at / 32 * 8 + 2 * f + at / 16 % 2; }
  static INLINE Bytes high(const char*, int) { return Bytes{}; }
  static INLINE SubBlocks sub_blocks(const char* p) {
    const Sixteen both = load_sixteen(p);
    return {both & (int8_t)15, (both >> 4) & (int8_t)15};
  }
};
struct Q3_K {
  static constexpr int kBytes = 110, kLow = 32, kLowBytes = 64, kFields = 4, kLowBits = 2, kHighBits = 1;
  static constexpr bool kOffset = false;
  static constexpr int kZero = 4, kScale = 108, kOffsetScale = 0, kHighStep = 1;
  static constexpr int unit(int at, int f) { return Q2_K::unit(at, f); }
  static INLINE Bytes high(const char* p, int v) {
    const int chunk = v * kStep / 32;
    return shifted_pair(p, v % 2, 4 * chunk, 4 * chunk + 4);
  }
  static INLINE SubBlocks sub_blocks(const char* p) {  // six bits, of which the upper two lie apart
    const uint32_t a = four_at(p + 96), b = four_at(p + 100), rest = four_at(p + 104);
    const uint64_t low_a = (a & 0x0f0f0f0fu) | (rest << 4 & 0x30303030u),
                   low_b = (b & 0x0f0f0f0fu) | (rest << 2 & 0x30303030u),
                   high_a = (a >> 4 & 0x0f0f0f0fu) | (rest & 0x30303030u),
                   high_b = (b >> 4 & 0x0f0f0f0fu) | (rest >> 2 & 0x30303030u);
    const Sixteen scales = sixteen(low_a | low_b << 32, high_a | high_b << 32) - (int8_t)32;
    return {scales, Sixteen{}};
  }
};
struct Q6_K {
  static constexpr int kBytes = 210, kLow = 0, kLowBytes = 128, kFields = 2, kLowBits = 4, kHighBits = 2;
  static constexpr bool kOffset = false;
  static constexpr int kZero = 32, kScale = 208, kOffsetScale = 0, kHighStep = 4;
  static constexpr int unit(int at, int f) { return at / 64 * 8 + 4 * f + at / 16 % 4; }
  static INLINE Bytes high(const char* p, int v) {
    const int at = v * kStep, shift = at / 32 % 2 * 2;
    return shifted_pair(p + 128 + at / 64 * 32, v % 2, shift, shift + 2);
  }
  static INLINE SubBlocks sub_blocks(const char* p) {
    const Sixteen scales = load_sixteen(p + 192);
    return {scales, Sixteen{}};
  }
};

// A block of x: its values in the order of a format's fields; by 16, in their own order, the sums of these;
// its scale.
struct Group256 {
  int8_t values[256];
  int32_t sums[16];
  float scale, unused[15];
};

// In the order of F's fields: the unit of 16 values that is at a place, and the scale of each lane.
template <class F>
struct Order {
  int8_t unit[16] = {};
  alignas(16) int8_t lanes[16 * 4] = {};
  constexpr Order() {
    for (int place = 0; place < 16; ++place) {
      const int vector = place / kGroup, piece = place % kGroup;
      unit[place] =
          static_cast<int8_t>(F::unit(vector / F::kFields * kStep + 16 * piece, vector % F::kFields));
      for (int i = 0; i < 4; ++i) lanes[4 * place + i] = unit[place];
    }
  }
};
template <class F>
constexpr Order<F> order;

inline bool pack_block256(Group256* group, const float* x, const int8_t* unit, float* largest, float* rest) {
  Vec size = Vec{};
  Int finite = Int{} - 1;
  for (int i = 0; i < 256; i += LANES) {
    const Vec magnitude = (Vec)((Bits)load(x + i) & 0x7fffffffu);
    finite &= magnitude < __builtin_inff();
    size = Max{}(size, magnitude);
  }
  if (across((Vec)(finite & 0x3f800000), Least{}) == 0.f) return false;
  const float most = across(size, Max{});
  *largest = most > *largest ? most : *largest;
  const bool tiny = most < 0x1p-119f;
  const float inverse = tiny ? 0.f : 127.f / most;
  group->scale = tiny ? 0.f : most / 127.f;
  for (int place = 0; place < 16; ++place) {
    const int from = 16 * unit[place];
    Int sum = Int{};
    for (int i = 0; i < 16; i += LANES) {
      const Vec each = load(x + from + i), rounded = each * inverse + kRound;
      const Int whole = (Int)rounded - (int32_t)0x4b400000;
      if (rest) store(rest + from + i, each - (rounded - kRound) * group->scale);
      *reinterpret_cast<LanesOfBytesInMemory*>(group->values + 16 * place + i) = low_bytes(whole);
      sum += whole;
    }
    group->sums[unit[place]] = static_cast<int32_t>(across(to_float(sum), Plus{}));
  }
  return true;
}

// Scales [i, i + LANES).
INLINE Int some(Sixteen scales, int i) {
  int8_t each[16];
  __builtin_memcpy(each, &scales, 16);
  return __builtin_convertvector(*reinterpret_cast<const LanesOfBytesInMemory*>(each + i), Int);
}

// Products of 16 scales with 16 sums of x, added up.
INLINE Int with_sums(Sixteen scales, const int32_t* sums) {
  Int sum = Int{};
  for (int i = 0; i < 16; i += LANES) sum += some(scales, i) * load_int(sums + i);
  return sum;
}

// Field f of the v-th vector of a block.
template <class F>
INLINE Bytes unpacked(Bytes low, Bytes high, int f) {
  const Bytes bits = field(low, F::kLowBits * f, (1 << F::kLowBits) - 1);
  if (!F::kHighBits) return bits;
  return bits | (Bytes)((Words)field(high, F::kHighStep * f, (1 << F::kHighBits) - 1) << F::kLowBits);
}

template <class F, int M>
INLINE void add_block(Vec (&sums)[M], const char* w, const Group256* const (&x)[M]) {
  const SubBlocks sub = F::sub_blocks(w);
  Int whole[M] = {};
  for (int v = 0; v < F::kLowBytes / kStep; ++v) {
    const Bytes low = load_bytes(w + F::kLow + v * kStep), high = F::high(w, v);
    for (int f = 0; f < F::kFields; ++f) {
      const int vector = v * F::kFields + f;
      const Bytes q = unpacked<F>(low, high, f);
      const Int scales = scales_of_lanes(sub.scales, order<F>.lanes + vector * LANES);
      for (int m = 0; m < M; ++m)
        whole[m] += dot_small(Int{}, q, load_bytes(x[m]->values + vector * kStep)) * scales;
    }
  }
  const float scale = half_at(w + F::kScale);
  for (int m = 0; m < M; ++m) {
    if (F::kZero) whole[m] -= with_sums(sub.scales, x[m]->sums) * F::kZero;
    sums[m] += to_float(whole[m]) * (scale * x[m]->scale);
    if (F::kOffset)
      sums[m] -= to_float(with_sums(sub.offsets, x[m]->sums)) * (half_at(w + F::kOffsetScale) * x[m]->scale);
  }
}

template <class F>
struct Blocks256 {
  template <int M>
  static constexpr int kRows = kWeightRows<M>;

  static int64_t packed_bytes(int64_t k) { return k / 256 * static_cast<int64_t>(sizeof(Group256)); }

  static bool pack(char* to, const float* x, int64_t k, float* rest) {
    float largest = 0.f;
    Group256* group = reinterpret_cast<Group256*>(to);
    for (int64_t i = 0; i < k; i += 256, ++group)
      if (!pack_block256(group, x + i, order<F>.unit, &largest, rest ? rest + i : nullptr)) return false;
    return largest == 0.f || largest > 0x1p-60f;
  }

  template <int R, int M>
  static INLINE void dots(float (&out)[R][M], const Operands<R, M>& all) {
    Vec sums[R][M] = {};
    const Group256* x[M];
    for (int m = 0; m < M; ++m) x[m] = reinterpret_cast<const Group256*>(all.x[m]);
    for (int64_t b = 0; b < all.k / 256; ++b) {
      for (int r = 0; r < R; ++r) add_block<F, M>(sums[r], all.w[r] + b * F::kBytes, x);
      for (int m = 0; m < M; ++m) ++x[m];
    }
    sums_across(out, sums);
  }
};
