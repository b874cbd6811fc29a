// Blocks of 32 values with a float16 scale: w = scale (q - zero), or scale q + offset. The offset is
// multiplied with the sum of the rounded x, not of x itself: what rounding adds then meets w, which lies
// around zero, and not q, which does not. A group of blocks is multiplied at once, each in four lanes: a
// vector holds values 0-15 of every block of the group, another one values 16-31.

struct Pair {  // values 0-15 and 16-31 of a group's blocks
  Bytes first, second;
};

template <int kStride>
INLINE Pair nibbles(const char* p) {
  const Bytes both = pieces<kStride>(p);
  return {both & (int8_t)15, field(both, 4, 15)};
}

// 16 in the bytes whose bit, of 32 for each block, is set.
template <int kStride>
INLINE Pair fifth_bits(const char* p) {
  const Bytes place = (Bytes)(Longs{} + 0x8040201008040201u);
  const Bytes first = eights<kStride>(p) & place, second = eights<kStride>(p + 2) & place;
  return {(Bytes)(first != 0) & (int8_t)16, (Bytes)(second != 0) & (int8_t)16};
}

struct Q8_0 {
  static constexpr int kBytes = 34, kZero = kSignedZero;
  static constexpr bool kSigned = true, kOffset = false;
  static INLINE Pair unpack(const char* p) { return {pieces<kBytes>(p + 2), pieces<kBytes>(p + 18)}; }
};
struct Q4_0 {
  static constexpr int kBytes = 18, kZero = 8;
  static constexpr bool kSigned = false, kOffset = false;
  static INLINE Pair unpack(const char* p) { return nibbles<kBytes>(p + 2); }
};
struct Q4_1 {
  static constexpr int kBytes = 20, kZero = 0;
  static constexpr bool kSigned = false, kOffset = true;
  static INLINE Pair unpack(const char* p) { return nibbles<kBytes>(p + 4); }
};
struct Q5_0 {
  static constexpr int kBytes = 22, kZero = 16;
  static constexpr bool kSigned = false, kOffset = false;
  static INLINE Pair unpack(const char* p) {
    const Pair low = nibbles<kBytes>(p + 6), high = fifth_bits<kBytes>(p + 2);
    return {low.first | high.first, low.second | high.second};
  }
};
struct Q5_1 {
  static constexpr int kBytes = 24, kZero = 0;
  static constexpr bool kSigned = false, kOffset = true;
  static INLINE Pair unpack(const char* p) {
    const Pair low = nibbles<kBytes>(p + 8), high = fifth_bits<kBytes>(p + 4);
    return {low.first | high.first, low.second | high.second};
  }
};
struct IQ4_NL {
  static constexpr int kBytes = 18, kZero = kSignedZero;
  static constexpr bool kSigned = true, kOffset = false;
  static INLINE Pair unpack(const char* p) {
    const Pair index = nibbles<kBytes>(p + 2);
    return {from_table(values(), index.first), from_table(values(), index.second)};
  }
  static INLINE Sixteen values() {
    return Sixteen{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  }
};

// A group of x: its values in the order of the weights', and for each lane minus the sum of its values, its
// block's scale and a quarter of its block's sum.
struct Group32 {
  int8_t first[4 * LANES], second[4 * LANES];
  int32_t minus_sums[LANES];
  float scales[LANES], quarter_sums[LANES];
};

// One block of x to its place in a group. False if it is not finite; *largest is the row's so far.
inline bool pack_block(Group32* group, int place, const float* x, float* largest) {
  constexpr int kVecs = 32 / LANES;
  Vec size = Vec{}, v[kVecs];
  Int finite = Int{} - 1;
  for (int i = 0; i < kVecs; ++i) {
    v[i] = load(x + i * LANES);
    const Vec magnitude = (Vec)((Bits)v[i] & 0x7fffffffu);
    finite &= magnitude < __builtin_inff();
    size = Max{}(size, magnitude);
  }
  const float most = across(size, Max{});
  if (across((Vec)(finite & 0x3f800000), Least{}) == 0.f) return false;
  *largest = most > *largest ? most : *largest;
  const bool tiny = most < 0x1p-119f;  // 127 / most would overflow
  const float inverse = tiny ? 0.f : 127.f / most;
  Int sum = Int{};
  for (int i = 0; i < kVecs; ++i) {
    const Int whole = (Int)(v[i] * inverse + kRound) - (int32_t)0x4b400000;
    sum += whole;
    const int at = i * LANES;
    int8_t* const to = at < 16 ? group->first + 16 * place + at : group->second + 16 * place + at - 16;
    *reinterpret_cast<LanesOfBytesInMemory*>(to) = __builtin_convertvector(whole, LanesOfBytes);
  }
  const float scale = tiny ? 0.f : most / 127.f;
  const float quarter_sum = across(to_float(sum), Plus{}) * scale / 4.f;
  for (int i = 4 * place; i < 4 * place + 4; ++i) {
    group->scales[i] = scale;
    group->quarter_sums[i] = quarter_sum;
  }
  return true;
}

// A row. The last group overlaps the one before it, and has zeros where that one has values.
inline bool pack_row32(char* to, const float* x, int64_t k) {
  const int64_t blocks = k / 32;
  float largest = 0.f;
  Group32* group = reinterpret_cast<Group32*>(to);
  for (int64_t b = 0; b < blocks; b += kGroup, ++group) {
    const int64_t here = blocks - b < kGroup ? blocks - b : kGroup;
    const int64_t skipped = blocks < kGroup ? 0 : kGroup - here;
    if (here < kGroup) *group = Group32{};
    for (int64_t i = 0; i < here; ++i)
      if (!pack_block(group, static_cast<int>(skipped + i), x + (b + i) * 32, &largest)) return false;
    const Bytes ones = Bytes{} + (int8_t)1;
    const Int sums =
        dot_small(dot_small(Int{}, ones, load_bytes(group->first)), ones, load_bytes(group->second));
    store_int(group->minus_sums, Int{} - sums);
  }
  return largest == 0.f || largest > 0x1p-60f;
}

// A row's group at w.
template <class F, int M>
INLINE void add_group(Vec (&sums)[M], const char* w, const Group32* const (&x)[M]) {
  const Pair q = F::unpack(w);
  const Vec scale = halves<F::kBytes>(w);
  for (int m = 0; m < M; ++m) {
    const Int minus_sums = load_int(x[m]->minus_sums);
    const Bytes first = load_bytes(x[m]->first), second = load_bytes(x[m]->second);
    const Vec x_scale = load(x[m]->scales);
    const Int start = minus_sums * F::kZero;
    const Int sum = F::kSigned ? dot_signed(dot_signed(start, q.first, first), q.second, second)
                               : dot_small(dot_small(start, q.first, first), q.second, second);
    sums[m] += scale * x_scale * to_float(sum);
    if (F::kOffset) sums[m] += halves<F::kBytes>(w + 2) * load(x[m]->quarter_sums);
  }
}

template <class F>
struct Blocks32 {
  static int64_t packed_bytes(int64_t k) {
    return (k / 32 + kGroup - 1) / kGroup * static_cast<int64_t>(sizeof(Group32));
  }
  static bool pack(char* to, const float* x, int64_t k) { return pack_row32(to, x, k); }

  template <int R, int M>
  static INLINE void dots(float (&out)[R][M], const Operands<R, M>& all) {
    const int64_t blocks = all.k / 32;
    Vec sums[R][M] = {};
    const Group32* x[M];
    for (int m = 0; m < M; ++m) x[m] = reinterpret_cast<const Group32*>(all.x[m]);
    if (kGroup > 1 && blocks < kGroup) {
      for (int r = 0; r < R; ++r) add_padded(sums[r], all.w[r], x, blocks);
    } else {
      for (int64_t b = 0; b < blocks; b += kGroup) {
        const int64_t at = (b + kGroup <= blocks ? b : blocks - kGroup) * F::kBytes;
        for (int r = 0; r < R; ++r) add_group<F>(sums[r], all.w[r] + at, x);
        for (int m = 0; m < M; ++m) ++x[m];
      }
    }
    for (int r = 0; r < R; ++r)
      for (int m = 0; m < M; ++m) out[r][m] = across(sums[r][m], Plus{});
  }

 private:
  // A row of less than a group.
  template <int M>
  static INLINE void add_padded(Vec (&sums)[M], const char* row, const Group32* const (&x)[M],
                                int64_t blocks) {
    char padded[kGroup * F::kBytes] = {};
    for (int b = 0; b < kGroup - 1; ++b)
      if (b < blocks) __builtin_memcpy(padded + b * F::kBytes, row + b * F::kBytes, F::kBytes);
    add_group<F>(sums, padded, x);
  }
};
