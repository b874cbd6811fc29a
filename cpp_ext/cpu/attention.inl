// softmax(q k^T * scale + mask) v, block by block of keys (online softmax: Milakov and Gimelshein, 2018;
// Dao et al., 2022). Included by kernels.inl once per instruction set.
//
// For every row of a block of keys: scores, their largest so far, exponentials of the distance to it; what
// was summed before shrinks by the exponential of the step that the largest made. It starts at the lowest
// finite float, so that rows without a key need no case of their own: their sums stay zero.

constexpr int64_t kKeys = 128;  // in a block; the sums over one are added to those before, which keeps digits
constexpr float kHidden = -__builtin_inff();
constexpr float kLowest = -3.40282347e38f;

// c tanh(x / c). Near zero a polynomial (fitted to the relative error: 7e-8 with roundings), since 1 - e
// would lose digits.
struct Capped {
  float cap;
  INLINE Vec operator()(Vec x) const {
    const Vec u = x / cap;
    const Vec e = exp2_of_negative((Vec)((Bits)u | 0x80000000u) * (2.f * kLog2E));
    const Vec large = (1.f - e) / (1.f + e);
    const Vec z = u * u;
    Vec p = set(-5.895155573e-3f);
    p = p * z + 2.079596963e-2f;
    p = p * z + -5.378382971e-2f;
    p = p * z + 1.333192412e-1f;
    p = p * z + -3.333329800e-1f;
    const Vec small = u + u * z * p;
    const Vec bounded = z < 0.36f ? small : u < 0.f ? -large : large;
    return bounded * cap;
  }
};

void cap(float* x, int64_t n, float softcap) { map(x, n, Capped{softcap}, x); }

struct Masked {  // where the mask says so a key is hidden, whatever its score
  INLINE Vec operator()(Vec score, Vec mask) const { return mask == kHidden ? mask : score + mask; }
};

struct PlusScaled {
  float scale;
  INLINE Vec operator()(Vec x, Vec y) const { return x + scale * y; }
};

template <class T>
void widen(float* out, const void* x, int64_t n) {
  map(out, n, Same{}, static_cast<const T*>(x));
}
void widen_bool(float* out, const void* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<const uint8_t*>(x)[i] ? 0.f : kHidden;
}
constexpr void (*kWiden[])(float*, const void*, int64_t) = {widen<float>, widen<Float16>, widen<BFloat16>,
                                                            widen_bool};

template <class T>
void narrow(void* out, const float* x, int64_t n, float scale) {
  map(static_cast<T*>(out), n, Scaled{scale}, x);
}
constexpr void (*kNarrow[])(void*, const float*, int64_t, float) = {narrow<float>, narrow<Float16>,
                                                                    narrow<BFloat16>};

INLINE int64_t bytes_of(DType type) { return type == kFloat32 ? 4 : type == kBool ? 1 : 2; }
INLINE int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Query r / heads of head r % heads.
struct Row {
  int64_t query, head;
  INLINE Row(const Attention& all, int64_t r) : query(r / all.heads), head(r % all.heads) {}
};

INLINE void widen_query(float* to, const Attention& all, const AttentionHead& head, int64_t r) {
  const Row row(all, r);
  const int64_t at = row.head * all.q_head + row.query * all.q_row;
  kWiden[all.q_type](to, head.q + at * bytes_of(all.q_type), all.d);
  map(to, all.d, Scaled{all.scale}, to);
}

// What the mask adds to the scores of row r with `keys` keys from `key` on.
INLINE void widen_mask(float* to, const Attention& all, const AttentionHead& head, int64_t r, int64_t key,
                       int64_t keys) {
  const Row row(all, r);
  const int64_t at = row.head * all.mask_head + row.query * all.mask_row + key * all.mask_key;
  kWiden[all.mask_type](to, head.mask + at * bytes_of(all.mask_type), all.mask_key ? keys : 1);
  if (!all.mask_key)
    for (int64_t j = 1; j < keys; ++j) to[j] = to[0];
}

// The result of row r: sums of values by the sum of the exponentials, or what merge() needs.
INLINE void finish_row(const Attention& all, const AttentionHead& head, const AttentionPart& part, int64_t r,
                       const float* values, float top, float sum) {
  if (part.sums) {
    float* to = part.sums + (r - part.row) * (all.e + 2);
    map(to, all.e, Same{}, values);
    to[all.e] = top;
    to[all.e + 1] = sum;
    return;
  }
  const Row row(all, r);
  const int64_t at = row.head * all.out_head + row.query * all.out_row;
  kNarrow[all.q_type](head.out + at * bytes_of(all.q_type), values, all.e, sum == 0.f ? 0.f : 1.f / sum);
}

INLINE float exp_of_negative(float x) { return exp2_of_negative(set(x * kLog2E))[0]; }

void merge(const Attention& all, const AttentionHead& head, int64_t row, int64_t rows, float* sums,
           int64_t parts) {
  const int64_t width = all.e + 2, apart = rows * width;
  for (int64_t r = 0; r < rows; ++r) {
    float* const total = sums + r * width;  // of the first part
    float top = total[all.e], sum = 0.f;
    for (int64_t p = 1; p < parts; ++p) top = top < total[p * apart + all.e] ? total[p * apart + all.e] : top;
    for (int64_t p = 0; p < parts; ++p) {
      const float* const each = total + p * apart;
      const float weight = exp_of_negative(each[all.e] - top);
      sum += weight * each[all.e + 1];
      if (p == 0)
        map(total, all.e, Scaled{weight}, total);
      else
        map(total, all.e, PlusScaled{weight}, total, each);
    }
    finish_row(all, head, {row, rows, 0, 0, nullptr}, row + r, total, top, sum);
  }
}

// ---------------------------------------------------------------------------------------- few rows
// As when a model generates: the time is that of reading keys and values, once for all rows.

constexpr int64_t kFewQueryRows = 32;
constexpr int kRowsAtOnce = VECTORS == 32 ? 4 : 2;  // by four keys, or by kValueVecs of values, in registers
constexpr int kValueVecs = 4;

template <int kDistance, int... I>
INLINE Vec own_half(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I & kDistance ? I + LANES : I)...);
}
template <int kDistance, int... I>
INLINE Vec other_half(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I & kDistance ? I + LANES : I) ^ kDistance...);
}

// Sums of pairs of lanes that are kDistance apart; lanes with that bit are of the vectors' upper half.
template <int kCount, int kDistance>
INLINE Vec joined(const Vec* v) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    constexpr int kApart = kDistance * kCount / 2;
    const Vec a = joined<kCount / 2, kDistance>(v), b = joined<kCount / 2, kDistance>(v + kCount / 2);
    return own_half<kApart>(a, b, Lanes{}) + other_half<kApart>(a, b, Lanes{});
  }
}

// Rows of keys or values, and those that are needed after them: while a kernel computes with the ones, the
// memory fetches the others into the second-level cache.
template <class T>
struct Stream {
  const T* rows;
  int64_t stride;
  const T* next;
  int64_t next_stride;
  INLINE const T* row(int64_t j) const { return rows + j * stride; }
  INLINE void fetch(int64_t j, int64_t i) const { __builtin_prefetch(next + j * next_stride + i, 0, 2); }
};

// A value that several instructions use: loaded once, not by each of them, of which there can be only one or
// two in a cycle.
INLINE Vec once(Vec v) {
#ifdef KEEP_IN_REGISTER
  KEEP_IN_REGISTER(v);
#endif
  return v;
}

// to[r][j] = q[r] . k[j] for LANES keys from `first` on, and what whole vectors have of their lengths
template <int kRows, class T>
INLINE void dots(float* to, const float* q, int64_t q_stride, const Stream<T>& k, int64_t first, int64_t d) {
  Vec sums[kRows][LANES / 4];
  for (int c = 0; c < LANES / 4; ++c) {
    const int64_t key = first + 4 * c;
    Vec sum[kRows][4];
    for (int r = 0; r < kRows; ++r)
      for (int j = 0; j < 4; ++j) sum[r][j] = Vec{};
    for (int64_t i = 0; i + LANES <= d; i += LANES) {
      Vec part[4];
      for (int j = 0; j < 4; ++j) {
        part[j] = once(load(k.row(key + j) + i));
        k.fetch(key + j, i);
      }
      for (int r = 0; r < kRows; ++r) {
        const Vec query = load(q + r * q_stride + i);
        for (int j = 0; j < 4; ++j) sum[r][j] += query * part[j];
      }
    }
    for (int r = 0; r < kRows; ++r) sums[r][c] = joined<4, 1>(sum[r]);
  }
  for (int r = 0; r < kRows; ++r) store(to + r * kKeys + first, joined<LANES / 4, 4>(sums[r]));
}

struct Product {
  INLINE Vec operator()(Vec a, Vec b) const { return a * b; }
};

// to[r][j] = q[r] . k[j] for all keys. Those that fill no vector are counted again with ones before them.
template <int kRows, class T>
void dots_of_block(float* to, const float* q, int64_t q_stride, const Stream<T>& k, int64_t d, int64_t keys) {
  const int64_t whole = keys < LANES ? 0 : d / LANES * LANES;
  for (int64_t j = 0; j < keys; j += LANES)
    if (whole) dots<kRows>(to, q, q_stride, k, smaller(j, keys - LANES), d);
  if (whole && whole == d) return;
  for (int r = 0; r < kRows; ++r)
    for (int64_t j = 0; j < keys; ++j) {
      const float rest =
          reduce(0.f, d - whole, Plus{}, Product{}, q + r * q_stride + whole, k.row(j) + whole);
      to[r * kKeys + j] = whole ? to[r * kKeys + j] + rest : rest;
    }
}

// acc[r] += p[r][j] v[j], kVecs vectors of each row from column i on, over all keys; `part` is not zero for
// the last columns, less than a vector.
template <int kRows, int kVecs, class T>
INLINE void add_columns(float* acc, int64_t acc_stride, const float* p, const Stream<T>& v, int64_t i,
                        int64_t keys, int64_t part) {
  Vec sum[kRows][kVecs] = {};
  for (int64_t j = 0; j < keys; ++j) {
    const T* const row = v.row(j) + i;
    Vec value[kVecs];
    for (int x = 0; x < kVecs; ++x) {
      value[x] = once(part ? load(row, part) : load(row + x * LANES));
      v.fetch(j, i + x * LANES);
    }
    for (int r = 0; r < kRows; ++r)
      for (int x = 0; x < kVecs; ++x) sum[r][x] += p[r * kKeys + j] * value[x];
  }
  for (int r = 0; r < kRows; ++r)
    for (int x = 0; x < kVecs; ++x) {
      float* const to = acc + r * acc_stride + i + x * LANES;
      store(to, load(to) + sum[r][x]);
    }
}

template <int kRows, class T>
void add_block(float* acc, int64_t acc_stride, const float* p, const Stream<T>& v, int64_t e, int64_t keys) {
  int64_t i = 0;
  for (; i + kValueVecs * LANES <= e; i += kValueVecs * LANES)
    add_columns<kRows, kValueVecs>(acc, acc_stride, p, v, i, keys, 0);
  for (; i + LANES <= e; i += LANES) add_columns<kRows, 1>(acc, acc_stride, p, v, i, keys, 0);
  if (i < e) add_columns<kRows, 1>(acc, acc_stride, p, v, i, keys, e - i);
}

// By the number of rows.
template <class T>
constexpr void (*kDots[])(float*, const float*, int64_t, const Stream<T>&, int64_t, int64_t) = {
    nullptr,
    dots_of_block<1, T>,
    dots_of_block<2, T>,
#if VECTORS == 32
    dots_of_block<3, T>,
    dots_of_block<4, T>,
#endif
};
template <class T>
constexpr void (*kAddBlock[])(float*, int64_t, const float*, const Stream<T>&, int64_t, int64_t) = {
    nullptr,         add_block<1, T>, add_block<2, T>,
#if VECTORS == 32
    add_block<3, T>, add_block<4, T>,
#endif
};

// Scores of row r -> exponentials; what the row has seen before shrinks.
inline void exponentials_of_row(float* p, float* acc, float* top, float* sum, const Attention& all,
                                const AttentionHead& head, int64_t r, int64_t key, int64_t keys) {
  const int64_t query = r / all.heads;
  const int64_t begin = smaller(keys, larger(0, query + all.low - key));
  const int64_t end = larger(begin, smaller(keys, query + all.high + 1 - key));
  if (all.softcap != 0.f) cap(p, keys, all.softcap);
  if (head.mask) {
    float mask[kKeys];
    widen_mask(mask, all, head, r, key, keys);
    map(p, keys, Masked{}, p, mask);
  }
  const float largest = reduce(*top, end - begin, Max{}, Same{}, p + begin);
  const float shrink = exp_of_negative(*top - largest);
  map(acc, all.e, Scaled{shrink}, acc);
  for (int64_t j = 0; j < begin; ++j) p[j] = 0.f;
  *sum = *sum * shrink + map_and_sum(p + begin, end - begin, ExpFrom{largest}, Same{}, p + begin);
  for (int64_t j = end; j < keys; ++j) p[j] = 0.f;
  *top = largest;
}

template <class T>
void few_rows(const Attention& all, const AttentionHead& head, const AttentionPart& part, float* workspace) {
  const int64_t q_stride = round_up(all.d, LANES), acc_stride = round_up(all.e, LANES);
  float *const q = workspace, *const p = q + kFewQueryRows * q_stride, *const acc = p + kFewQueryRows * kKeys;
  float top[kFewQueryRows], sum[kFewQueryRows] = {};
  for (int64_t r = 0; r < part.rows; ++r) {
    float* const row = q + r * q_stride;
    for (int64_t i = all.d; i < q_stride; ++i) row[i] = 0.f;
    widen_query(row, all, head, part.row + r);
    top[r] = kLowest;
  }
  for (int64_t i = 0; i < part.rows * acc_stride; i += LANES) store(acc + i, Vec{});
  for (int64_t key = part.key; key < part.key_end; key += kKeys) {
    const int64_t keys = smaller(kKeys, part.key_end - key);
    const T *const k = reinterpret_cast<const T*>(head.k) + key * all.k_row, *const v =
                                                                                 reinterpret_cast<const T*>(
                                                                                     head.v) +
                                                                                 key * all.v_row;
    const int64_t ahead = key + kKeys < part.key_end ? kKeys * all.k_row : 0;
    for (int64_t r = 0; r < part.rows; r += kRowsAtOnce)
      kDots<T>[smaller(part.rows - r, kRowsAtOnce)](p + r* kKeys, q + r* q_stride, q_stride,
                                                    {k, all.k_row, v, all.v_row}, all.d, keys);
    for (int64_t r = 0; r < part.rows; ++r)
      exponentials_of_row(p + r * kKeys, acc + r * acc_stride, top + r, sum + r, all, head, part.row + r, key,
                          keys);
    for (int64_t r = 0; r < part.rows; r += kRowsAtOnce)
      kAddBlock<T>[smaller(part.rows - r, kRowsAtOnce)](acc + r* acc_stride, acc_stride, p + r* kKeys,
                                                        {v, all.v_row, k + ahead, all.k_row}, all.e, keys);
  }
  for (int64_t r = 0; r < part.rows; ++r)
    finish_row(all, head, part, part.row + r, acc + r * acc_stride, top[r], sum[r]);
}

// ---------------------------------------------------------------------------------------- many rows
// Rows lie across the lanes, from the transposed queries to the transposed result: maxima and sums of a row
// need no steps across lanes, and keys and values are read as they lie, one broadcast element at a time.

constexpr int kPanelVecs = 3;
constexpr int64_t kPanelRows = kPanelVecs * LANES;
constexpr int kSteps = VECTORS == 32 ? 8 : 4;  // kSteps * kPanelVecs sums stay in registers
constexpr int64_t kAliased = 1024;             // floats between rows that would share their place in a cache

// to[i][r] = from[r][i] for LANES rows and n columns, up to a whole vector of them
inline void transpose_rows(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t n) {
  for (int64_t i = 0; i < n; i += LANES) {
    Vec v[LANES];
    for (int r = 0; r < LANES; ++r) v[r] = load(from + r * from_stride + i);
    transpose<LANES>(v);
    for (int64_t j = 0; j < smaller(LANES, n - i); ++j) store(to + (i + j) * to_stride, v[j]);
  }
}

// sum[i][x] = a[i] b[x] summed over depth: a is kSteps rows, or columns, of memory and b is vectors of a
// panel
template <int kVecs>
INLINE void products(Vec (&sum)[kSteps][kVecs], const float* a, int64_t between_rows, int64_t between_terms,
                     const float* b, int64_t depth) {
  for (int i = 0; i < kSteps; ++i)
    for (int x = 0; x < kVecs; ++x) sum[i][x] = Vec{};
  for (int64_t n = 0; n < depth; ++n, a += between_terms, b += kVecs * LANES) {
    Vec column[kVecs];
    for (int x = 0; x < kVecs; ++x) column[x] = once(load(b + x * LANES));
    for (int i = 0; i < kSteps; ++i)
      for (int x = 0; x < kVecs; ++x) sum[i][x] += a[i * between_rows] * column[x];
  }
}

// Keys or values of a block in float32, dense, and filled up with zeros to whole steps.
struct Dense {
  const float* data;
  int64_t stride;
};
inline Dense dense(float* to, const char* from, DType type, int64_t stride, int64_t rows, int64_t columns,
                   int64_t all_rows, int64_t all_columns) {
  const bool whole = rows == all_rows && columns == all_columns;
  if (type == kFloat32 && whole && stride == columns && stride % kAliased != 0)
    return {reinterpret_cast<const float*>(from), stride};
  const int64_t to_stride = round_up(all_columns, LANES) + LANES;
  for (int64_t j = 0; j < all_rows; ++j, to += to_stride) {
    for (int64_t i = j < rows ? columns : 0; i < all_columns; ++i) to[i] = 0.f;
    if (j < rows) kWiden[type](to, from + j * stride * bytes_of(type), columns);
  }
  return {to - all_rows * to_stride, to_stride};
}

struct PanelMemory {
  int64_t q, p, acc, k, v, mask, rows, total;
  INLINE explicit PanelMemory(const Attention& all) {
    const int64_t d = round_up(all.d, LANES) + LANES, e = round_up(all.e, LANES) + LANES;
    q = 0;
    p = q + d * kPanelRows;
    acc = p + kKeys * kPanelRows;
    k = acc + e * kPanelRows;
    v = k + kKeys * d;
    mask = v + kKeys * e;
    rows = mask + kKeys * kPanelRows;
    total = rows + LANES * larger(larger(d, e), kKeys);
  }
};

template <int kVecs>
struct Panel {
  static constexpr int64_t kWidth = kVecs * LANES;
  const Attention& all;
  const AttentionHead& head;
  const AttentionPart& part;
  const PanelMemory at;
  float* memory;
  Vec top[kVecs], sum[kVecs];

  INLINE int64_t row(int64_t lane) const {  // lanes without a row repeat the last one
    return part.row + smaller(lane, part.rows - 1);
  }

  void fill_queries() {
    const int64_t stride = round_up(all.d, LANES);
    float* const rows = memory + at.rows;
    for (int x = 0; x < kVecs; ++x) {
      for (int r = 0; r < LANES; ++r) widen_query(rows + r * stride, all, head, row(x * LANES + r));
      transpose_rows(memory + at.q + x * LANES, kWidth, rows, stride, all.d);
    }
  }

  void fill_mask(int64_t key, int64_t keys) {
    float* const rows = memory + at.rows;
    for (int x = 0; x < kVecs; ++x) {
      for (int r = 0; r < LANES; ++r) widen_mask(rows + r * kKeys, all, head, row(x * LANES + r), key, keys);
      transpose_rows(memory + at.mask + x * LANES, kWidth, rows, kKeys, keys);
    }
  }

  // Scores of a block, and the largest of each row.
  INLINE void scores(const Dense& k, int64_t keys, Vec (&largest)[kVecs]) {
    for (int x = 0; x < kVecs; ++x) largest[x] = top[x];
    float* to = memory + at.p;
    for (int64_t j = 0; j < keys; j += kSteps) {
      Vec score[kSteps][kVecs];
      products(score, k.data + j * k.stride, k.stride, 1, memory + at.q, all.d);
      for (int i = 0; i < kSteps; ++i)
        for (int x = 0; x < kVecs; ++x, to += LANES) {
          store(to, score[i][x]);
          largest[x] = Max{}(score[i][x], largest[x]);
        }
    }
  }

  // Soft-cap, mask, and keys that a row does not see.
  INLINE void restrict_scores(int64_t key, int64_t keys, Vec (&largest)[kVecs]) {
    int32_t first[kWidth], last[kWidth];
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      const int64_t query = row(lane) / all.heads;
      first[lane] = static_cast<int32_t>(smaller(kKeys, larger(0, query + all.low - key)));
      last[lane] = static_cast<int32_t>(larger(-1, smaller(part.key_end - 1 - key, query + all.high - key)));
    }
    if (head.mask) fill_mask(key, smaller(keys, part.key_end - key));
    for (int x = 0; x < kVecs; ++x) {
      const Int from = (Int)load(reinterpret_cast<const float*>(first) + x * LANES);
      const Int to = (Int)load(reinterpret_cast<const float*>(last) + x * LANES);
      largest[x] = top[x];
      for (int64_t j = 0; j < keys; ++j) {
        float* const at_key = memory + at.p + j * kWidth + x * LANES;
        Vec score = load(at_key);
        if (all.softcap != 0.f) score = Capped{all.softcap}(score);
        if (head.mask) score = Masked{}(score, load(memory + at.mask + j * kWidth + x * LANES));
        const Int here = Int{} + static_cast<int32_t>(j);
        score = ((here >= from) & (here <= to)) ? score : set(kHidden);
        store(at_key, score);
        largest[x] = Max{}(score, largest[x]);
      }
    }
  }

  INLINE void exponentials(int64_t keys, const Vec (&largest)[kVecs], Vec (&shrink)[kVecs]) {
    Vec added[kVecs] = {};
    float* p = memory + at.p;
    for (int64_t j = 0; j < keys; ++j)
      for (int x = 0; x < kVecs; ++x, p += LANES) {
        const Vec e = exp2_of_negative((load(p) - largest[x]) * kLog2E);
        store(p, e);
        added[x] += e;
      }
    for (int x = 0; x < kVecs; ++x) {
      shrink[x] = exp2_of_negative((top[x] - largest[x]) * kLog2E);
      sum[x] = sum[x] * shrink[x] + added[x];
      top[x] = largest[x];
    }
  }

  INLINE void add_values(const Dense& v, int64_t keys, const Vec (&shrink)[kVecs]) {
    float* acc = memory + at.acc;
    for (int64_t i = 0; i < all.e; i += kSteps) {
      Vec added[kSteps][kVecs];
      products(added, v.data + i, 1, v.stride, memory + at.p, keys);
      for (int n = 0; n < kSteps; ++n)
        for (int x = 0; x < kVecs; ++x, acc += LANES) store(acc, load(acc) * shrink[x] + added[n][x]);
    }
  }

  // Whether all rows see all of a block's keys, and nothing is to be done to their scores.
  INLINE bool open(int64_t key, int64_t keys) const {
    const int64_t first = row(0) / all.heads, last = row(part.rows - 1) / all.heads;
    return !head.mask && all.softcap == 0.f && key + keys <= part.key_end && last + all.low <= key &&
           first + all.high >= key + keys - 1;
  }

  void add_block(int64_t key) {
    const int64_t keys = smaller(kKeys, part.key_end - key), steps = round_up(keys, kSteps);
    const int64_t size = bytes_of(all.kv_type);
    Vec largest[kVecs], shrink[kVecs];
    scores(dense(memory + at.k, head.k + key * all.k_row * size, all.kv_type, all.k_row, keys, all.d, steps,
                 all.d),
           steps, largest);
    if (!open(key, steps)) restrict_scores(key, steps, largest);
    exponentials(steps, largest, shrink);
    add_values(dense(memory + at.v, head.v + key * all.v_row * size, all.kv_type, all.v_row, keys, all.e,
                     keys, round_up(all.e, kSteps)),
               keys, shrink);
  }

  void write() {
    const int64_t stride = round_up(all.e, LANES);
    float *const rows = memory + at.rows, *const acc = memory + at.acc;
    for (int x = 0; x < kVecs; ++x) {
      for (int64_t i = 0; i < stride; i += LANES) {
        Vec v[LANES];
        for (int j = 0; j < LANES; ++j) v[j] = load(acc + (i + j) * kWidth + x * LANES);
        transpose<LANES>(v);
        for (int r = 0; r < LANES; ++r) store(rows + r * stride + i, v[r]);
      }
      for (int64_t r = 0; r < smaller(LANES, part.rows - x * LANES); ++r)
        finish_row(all, head, part, part.row + x * LANES + r, rows + r * stride, top[x][r], sum[x][r]);
    }
  }

  void run() {
    for (int x = 0; x < kVecs; ++x) {
      top[x] = set(kLowest);
      sum[x] = Vec{};
    }
    for (int64_t i = 0; i < round_up(all.e, LANES) * kWidth; i += LANES) store(memory + at.acc + i, Vec{});
    fill_queries();
    for (int64_t key = part.key; key < part.key_end; key += kKeys) add_block(key);
    write();
  }
};

template <int kVecs>
void panel(const Attention& all, const AttentionHead& head, const AttentionPart& part, float* memory) {
  Panel<kVecs>{all, head, part, PanelMemory(all), memory, {}, {}}.run();
}

void panel_rows(const Attention& all, const AttentionHead& head, const AttentionPart& part, float* memory) {
  constexpr AttentionKernel* kPanels[] = {panel<1>, panel<2>, panel<3>};
  kPanels[(part.rows - 1) / LANES](all, head, part, memory);
}

int64_t attention_workspace(const Attention& all) {
  const int64_t few = kFewQueryRows * (round_up(all.d, LANES) + kKeys + round_up(all.e, LANES));
  return larger(few, PanelMemory(all).total);
}

// ---------------------------------------------------------------------------------------- one query

template <class T>
void scores(float* out, const float* x, const void* matrix, int64_t stride, int64_t rows, int64_t d) {
  float block[kKeys];
  for (int64_t j = 0; j < rows; j += kKeys) {
    const int64_t n = smaller(kKeys, rows - j);
    const T* const here = static_cast<const T*>(matrix) + j * stride;
    dots_of_block<1, T>(block, x, 0, {here, stride, n < rows - j ? here + n * stride : here, stride}, d, n);
    map(out + j, n, Same{}, block);
  }
}

template <class T>
void add_weighted_rows(float* out, const float* weights, const void* matrix, int64_t stride, int64_t rows,
                       int64_t d) {
  for (int64_t j = 0; j < rows; j += kKeys) {
    const int64_t n = smaller(kKeys, rows - j);
    const T* const here = static_cast<const T*>(matrix) + j * stride;
    add_block<1, T>(out, 0, weights + j, {here, stride, n < rows - j ? here + n * stride : here, stride}, d,
                    n);
  }
}

constexpr AttentionKernels attention_kernels = {
    kFewQueryRows,
    kPanelRows,
    {few_rows<float>, few_rows<Float16>, few_rows<BFloat16>},
    panel_rows,
    attention_workspace,
    merge,
    {scores<float>, scores<Float16>, scores<BFloat16>},
    {add_weighted_rows<float>, add_weighted_rows<Float16>, add_weighted_rows<BFloat16>},
    {widen<float>, widen<Float16>, widen<BFloat16>, widen_bool},
    {narrow<float>, narrow<Float16>, narrow<BFloat16>},
    cap,
};
