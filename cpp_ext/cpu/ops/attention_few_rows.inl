// Attention with few rows per key-value head, as in token generation. Its cost is reading keys and values,
// once for all rows.
#ifndef AIRLLM_ATTENTION_FEW_ROWS_INL
#define AIRLLM_ATTENTION_FEW_ROWS_INL
#include "attention_rows.inl"

namespace cpu::ISA {
namespace {

constexpr int64_t kFewQueryRows = 32;
constexpr int kRowsAtOnce = VECTORS == 32 ? 4 : 2;  // in registers, by 4 keys or kValueVecs vectors of values
constexpr int kValueVecs = 4;

template <int kDistance, int... I>
INLINE Vec own_half(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I & kDistance ? I + LANES : I)...);
}
template <int kDistance, int... I>
INLINE Vec other_half(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I & kDistance ? I + LANES : I) ^ kDistance...);
}

// Sums pairs of lanes that are kDistance apart; lanes with that bit come from the upper half of the vectors.
template <int kCount, int kDistance>
INLINE Vec add_lane_pairs(const Vec* v) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    constexpr int kApart = kDistance * kCount / 2;
    const Vec a = add_lane_pairs<kCount / 2, kDistance>(v),
              b = add_lane_pairs<kCount / 2, kDistance>(v + kCount / 2);
    return own_half<kApart>(a, b, Lanes{}) + other_half<kApart>(a, b, Lanes{});
  }
}

// Keeps a value in a register for several instructions. Each of them would load it again otherwise, and a
// core does one or two loads a cycle.
INLINE Vec once(Vec v) {
#ifdef KEEP_IN_REGISTER
  KEEP_IN_REGISTER(v);
#endif
  return v;
}

// to[r][j] = q[r] . k[j] for LANES keys from `first` on, over the whole vectors of each row
template <int kRows, class T>
INLINE void dots(float* to, const float* q, int64_t q_stride, const Stream<T>& k, int64_t first, int64_t d) {
  Vec sums[kRows][LANES / 4];
  for (int c = 0; c < LANES / 4; ++c) {
    const int64_t key = first + 4 * c;
    Vec sum[kRows][4];
    for (int r = 0; r < kRows; ++r)
      for (int j = 0; j < 4; ++j) sum[r][j] = Vec{};
    k.fetch_rows(key, d);
    for (int64_t i = 0; i + Stream<T>::kPiece <= d; i += Stream<T>::kPiece)
      for (int x = 0; x < Stream<T>::kPiece; x += LANES) {
        Vec part[4];
        for (int j = 0; j < 4; ++j) {
          part[j] = once(k.scaled(key, j, i, x));
          k.fetch_piece(key + j, i);
        }
        for (int r = 0; r < kRows; ++r) {
          const Vec query = load(q + r * q_stride + i + x);
          for (int j = 0; j < 4; ++j) sum[r][j] += query * part[j];
        }
      }
    for (int r = 0; r < kRows; ++r) sums[r][c] = add_lane_pairs<4, 1>(sum[r]);
  }
  for (int r = 0; r < kRows; ++r) store(to + r * kKeys + first, add_lane_pairs<LANES / 4, 4>(sums[r]));
}

// The sum of all lanes, in the order of dots().
INLINE float add_lanes(Vec v) {
  const Vec same[4] = {v, v, v, v};
  Vec fours[LANES / 4];
  for (Vec& each : fours) each = add_lane_pairs<4, 1>(same);
  return add_lane_pairs<LANES / 4, 4>(fours)[0];
}

// The same as dots(), bit for bit, for a single key.
template <class T>
INLINE float dot_of_key(const float* q, const Stream<T>& k, int64_t key, int64_t d) {
  Vec sum = {};
  for (int64_t i = 0; i + Stream<T>::kPiece <= d; i += Stream<T>::kPiece)
    for (int x = 0; x < Stream<T>::kPiece; x += LANES) sum += load(q + i + x) * once(k.scaled(key, 0, i, x));
  return add_lanes(sum);
}

// to[r][j] = q[r] . k[j] for all keys. The last vector overlaps the one before it and computes those keys
// again. The bits of a dot product do not depend on the number of keys.
template <int kRows, class T>
void dots_of_block(float* to, const float* q, int64_t q_stride, const Stream<T>& k, int64_t d, int64_t keys) {
  const int64_t whole = d / LANES * LANES;
  if (whole && keys < LANES) {
    for (int r = 0; r < kRows; ++r)
      for (int64_t j = 0; j < keys; ++j) to[r * kKeys + j] = dot_of_key(q + r * q_stride, k, j, d);
  } else if (whole) {
    for (int64_t j = 0; j < keys; j += LANES) dots<kRows>(to, q, q_stride, k, smaller(j, keys - LANES), d);
  }
  if (whole && whole == d) return;
  for (int r = 0; r < kRows; ++r)
    for (int64_t j = 0; j < keys; ++j) {
      const float rest = rest_of_dot(q + r * q_stride, k, j, whole, d);
      to[r * kKeys + j] = whole ? to[r * kKeys + j] + rest : rest;
    }
}

// acc[r] += p[r][j] v[j] over all keys, for kVecs vectors of each row starting at column i. `part` is nonzero
// for the last columns, which fill less than a vector.
template <int kRows, int kVecs, class T>
INLINE void add_columns(float* acc, int64_t acc_stride, const float* p, const Stream<T>& v, int64_t i,
                        int64_t keys, int64_t part) {
  Vec sum[kRows][kVecs] = {};
  for (int64_t j = 0; j < keys; ++j) {
    Vec value[kVecs];
    for (int x = 0; x < kVecs; ++x) {
      value[x] = once(v.values(j, i + x * LANES, part ? part : LANES));
      v.fetch(j, i, x * LANES);
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
  constexpr int kMost = Stream<T>::kTogether / LANES, kVecs = kValueVecs < kMost ? kValueVecs : kMost;
  float weights[kRows * kKeys];
  int64_t i = 0;
  for (; i + kVecs * LANES <= e; i += kVecs * LANES)
    add_columns<kRows, kVecs>(acc, acc_stride, v.weights(weights, p, i, kRows, keys), v, i, keys, 0);
  for (; i + LANES <= e; i += LANES) add_columns<kRows, 1>(acc, acc_stride, p, v, i, keys, 0);
  if (i < e) add_columns<kRows, 1>(acc, acc_stride, p, v, i, keys, e - i);
}

// Indexed by the number of rows.
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

// Turns the scores of row r into exponentials and rescales the row's earlier sums.
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
  const float largest = reduce(*top, end - begin, Max{}, Identity{}, p + begin);
  const float shrink = exp_of_negative(*top - largest);
  map(acc, all.e, Scaled{shrink}, acc);
  for (int64_t j = 0; j < begin; ++j) p[j] = 0.f;
  *sum = *sum * shrink + map_and_sum(p + begin, end - begin, ExpFrom{largest}, Identity{}, p + begin);
  for (int64_t j = end; j < keys; ++j) p[j] = 0.f;
  *top = largest;
}

template <class T>
void few_rows(const Attention& all, const AttentionHead& head, const AttentionPart& part, float* workspace) {
  const int64_t q_stride = round_up(all.d, LANES), acc_stride = round_up(all.e, LANES);
  float *const q = workspace, *const p = q + kFewQueryRows * q_stride, *const acc = p + kFewQueryRows * kKeys,
               *const scales = acc + kFewQueryRows * acc_stride;
  float top[kFewQueryRows], sum[kFewQueryRows] = {};
  for (int64_t r = 0; r < part.rows; ++r) {
    float* const row = q + r * q_stride;
    for (int64_t i = all.d; i < q_stride; ++i) row[i] = 0.f;
    widen_query(row, all, head, part.row + r);
    top[r] = kLowest;
  }
  for (int64_t i = 0; i < part.rows * acc_stride; i += LANES) store(acc + i, Vec{});
  for (int64_t key = part.key, keys; key < part.key_end; key += keys) {
    keys = keys_of_block(key, part.key_end);
    const T *const k = reinterpret_cast<const T*>(head.k) + key * all.k_row, *const v =
                                                                                 reinterpret_cast<const T*>(
                                                                                     head.v) +
                                                                                 key * all.v_row;
    const int64_t ahead = key + keys < part.key_end ? keys * all.k_row : 0;
    Stream<T> stream{k, all.k_row, v, all.v_row};
    stream.prepare(scales, all.d, keys);
    for (int64_t r = 0; r < part.rows; r += kRowsAtOnce)
      kDots<T>[smaller(part.rows - r, kRowsAtOnce)](p + r* kKeys, q + r* q_stride, q_stride, stream, all.d,
                                                    keys);
    for (int64_t r = 0; r < part.rows; ++r)
      exponentials_of_row(p + r * kKeys, acc + r * acc_stride, top + r, sum + r, all, head, part.row + r, key,
                          keys);
    stream = {v, all.v_row, k + ahead, all.k_row};
    stream.prepare(scales, all.e, keys);
    for (int64_t r = 0; r < part.rows; r += kRowsAtOnce)
      kAddBlock<T>[smaller(part.rows - r, kRowsAtOnce)](acc + r* acc_stride, acc_stride, p + r* kKeys, stream,
                                                        all.e, keys);
  }
  for (int64_t r = 0; r < part.rows; ++r)
    finish_row(all, head, part, part.row + r, acc + r * acc_stride, top[r], sum[r]);
}

}  // namespace
}  // namespace cpu::ISA

#endif
