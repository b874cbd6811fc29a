// Ops that compute each row (the last axis) independently.
#ifndef AIRLLM_ROWS_INL
#define AIRLLM_ROWS_INL
#include "../simd/vectors.inl"
#include "rows.h"

namespace cpu::ISA {
namespace {

// Elements of a row that are buffered in float32, in the first-level cache, until their sum is known.
constexpr int64_t kWaiting = 8192;
INLINE int64_t waiting_from(int64_t i, int64_t dim) { return smaller(dim - i, kWaiting); }

// Prefetch distance, in elements, of the last read of a row: the elements that follow are in the second-level
// cache when they are read. For a row of up to 32 KB that is all of them.
template <class T>
constexpr int64_t kPrefetchDistance = 32768 / sizeof(T);

struct Scaled {
  float scale;
  INLINE Vec operator()(Vec x) const { return x * scale; }
};
struct Normed {  // x * scale * weight
  float scale;
  INLINE Vec operator()(Vec x, Vec weight) const { return x * scale * weight; }
};

INLINE float rms_scale(float sum, const Rows& rows, float eps) {
  return 1.f / __builtin_sqrtf(sum / rows.dim + eps);
}

template <class T, class W>
void rms_norm(void* out_, const void* x_, const void* weight_, const Rows& rows, float eps) {
  T* out = static_cast<T*>(out_);
  const T* x = static_cast<const T*>(x_);
  const W* weight = static_cast<const W*>(weight_);
  const int64_t dim = rows.dim;
  for (int64_t r = 0; r < rows.count; ++r, x += dim, out += dim) {
    const Normed normed{rms_scale(sum(dim, Square{}, x), rows, eps)};
    map(rows.stream, out, dim, normed, Prefetched<T>{x, kPrefetchDistance<T>}, weight);
  }
  if (rows.stream) end_of_stream();
}

// a + b rounded to T.
template <class T>
struct Added {
  INLINE Vec operator()(Vec a, Vec b) const {
    T held[LANES];
    store(held, a + b);
    return as_stored(held, a + b);
  }
};
template <class T>
struct SquareOfAdded {
  INLINE Vec operator()(Vec a, Vec b) const { return Square{}(Added<T>{}(a, b)); }
};

template <class T>
struct RowToAdd {
  T *total, *normed;
  const T *x, *residual;
  INLINE RowToAdd operator+(int64_t i) const { return {total + i, normed + i, x + i, residual + i}; }
  INLINE double squares(int64_t n) const { return sum(n, SquareOfAdded<T>{}, x, residual); }
};

// Writes a row of both results and sums the squares of the next row, which is read from memory meanwhile. The
// sum is not stored: adding again from the second-level cache is cheaper than writing and reading it.
template <bool kMore, class T>
INLINE double stream_added(const RowToAdd<T>& row, AnyDtype weight, int64_t dim, const Normed& f) {
  const WholeLines lines = whole_lines(row.total, dim);
  const RowToAdd<T> next = row + dim;
  const auto sum_at = [&](int64_t at) __attribute__((always_inline)) {
    return Added<T>{}(load(row.x + at), load(row.residual + at));
  };
  const auto stream_at = [&](int64_t at) __attribute__((always_inline)) {
    const Vec sum = sum_at(at);
    stream(row.total + at, sum);
    stream(row.normed + at, f(sum, load(weight + at)));
  };
  double squares = 0;
  int64_t i = lines.begin, read = 0;
  while (i + 4 * LANES <= lines.end) {
    Vec acc[4] = {};
    for (const int64_t end = smaller(lines.end, i + kSummed); i + 4 * LANES <= end; i += 4 * LANES)
      for (int j = 0; j < 4; ++j, read += LANES) {
        if constexpr (kMore)
          acc[j] += SquareOfAdded<T>{}(load(Prefetched<T>{next.x + read, kPrefetchDistance<T>}),
                                       load(Prefetched<T>{next.residual + read, kPrefetchDistance<T>}));
        stream_at(i + j * LANES);
      }
    squares += across((acc[0] + acc[1]) + (acc[2] + acc[3]), Plus{});
  }
  for (; i < lines.end; i += LANES) stream_at(i);
  at_ends(lines, dim, [&](int64_t at, int64_t first, int64_t end) __attribute__((always_inline)) {
    const Vec sum = sum_at(at);
    store_lanes(row.total + at, sum, first, end);
    store_lanes(row.normed + at, f(sum, load(weight + at)), first, end);
  });
  return kMore ? squares + (next + read).squares(dim - read) : 0;
}

template <class T>
INLINE void add_rms_norm_streamed(RowToAdd<T> row, AnyDtype weight, const Rows& rows, float eps) {
  double squares = rows.count ? row.squares(rows.dim) : 0;
  for (int64_t r = 0; r < rows.count; ++r, row = row + rows.dim) {
    const Normed f{rms_scale(static_cast<float>(squares), rows, eps)};
    if (r + 1 < rows.count)
      squares = stream_added<true>(row, weight, rows.dim, f);
    else
      stream_added<false>(row, weight, rows.dim, f);
  }
  end_of_stream();
}

template <class T>
void add_rms_norm(void* total, void* normed, const void* x, const void* residual, AnyValues weight_,
                  const Rows& rows, float eps) {
  RowToAdd<T> row{static_cast<T*>(total), static_cast<T*>(normed), static_cast<const T*>(x),
                  static_cast<const T*>(residual)};
  const int64_t dim = rows.dim;
  const AnyDtype weight(weight_);
  const auto offset = [](const T* p) { return reinterpret_cast<uintptr_t>(p) % 64; };
  if (rows.stream && dim >= kLine<T> && offset(row.total) == offset(row.normed))
    return add_rms_norm_streamed(row, weight, rows, eps);
  for (int64_t r = 0; r < rows.count; ++r, row = row + dim) {
    double squares = 0;
    for (int64_t i = 0; i < dim; i += kWaiting)
      squares += map_and_sum(row.total + i, waiting_from(i, dim), Plus{}, Square{},
                             Prefetched<T>{row.x + i, dim}, Prefetched<T>{row.residual + i, dim});
    const Normed f{rms_scale(static_cast<float>(squares), rows, eps)};
    map(rows.stream, row.normed, dim, f, static_cast<const T*>(row.total), weight);
  }
  if (rows.stream) end_of_stream();
}

struct Minus {
  float c;
  INLINE Vec operator()(Vec x) const { return x - c; }
};
struct SquareOfMinus {
  float c;
  INLINE Vec operator()(Vec x) const { return (x - c) * (x - c); }
};
struct Standardized {
  float mean, rest, scale;
  INLINE Vec operator()(Vec x, Vec weight) const { return (x - mean - rest) * scale * weight; }
  INLINE Vec operator()(Vec x, Vec weight, Vec bias) const { return operator()(x, weight) + bias; }
};

// The mean is computed from differences to the row's first value, so that a constant row has a variance of
// exactly zero. The second sum finds the mean's rounding error, `rest`.
template <class T>
INLINE Standardized standardize(const T* x, int64_t dim, float eps) {
  const float first = load(x, 1)[0];
  float mean = first + sum(dim, Minus{first}, x) / dim;
  if (!(mean - mean == 0.f)) mean = sum(dim, Identity{}, x) / dim;  // the differences overflowed
  const float rest = sum(dim, Minus{mean}, x) / dim;
  const float variance = sum(dim, SquareOfMinus{mean}, x) / dim - rest * rest;
  return {mean, rest, 1.f / __builtin_sqrtf((variance < 0.f ? 0.f : variance) + eps)};
}

template <class T>
void layer_norm(void* out_, const void* x_, AnyValues weight, AnyValues bias, const Rows& rows, float eps) {
  T* out = static_cast<T*>(out_);
  const T* x = static_cast<const T*>(x_);
  const int64_t dim = rows.dim;
  for (int64_t r = 0; r < rows.count; ++r, x += dim, out += dim) {
    const Standardized f = standardize(x, dim, eps);
    if (bias.data)
      map(rows.stream, out, dim, f, Prefetched<T>{x, kPrefetchDistance<T>}, AnyDtype(weight), AnyDtype(bias));
    else
      map(rows.stream, out, dim, f, Prefetched<T>{x, kPrefetchDistance<T>}, AnyDtype(weight));
  }
  if (rows.stream) end_of_stream();
}

struct ExpFrom {  // exp((x - top) * scale); `scale` includes log2(e)
  float top;
  float scale = kLog2E;
  INLINE Vec operator()(Vec x) const { return exp2_of_negative((x - top) * scale); }
};
struct ScaledPlus {
  float scale;
  INLINE Vec operator()(Vec x, Vec mask) const { return x * scale + mask; }
};
struct ScaledIf {
  float scale;
  INLINE Vec operator()(Vec x, Vec keep) const { return (Int)keep < 0 ? x * scale : set(-__builtin_inff()); }
};

// A row whose scores increase with its elements: the largest element gives the largest score.
template <class T>
struct GrowingRow {
  const T* x;
  float scale;
  INLINE float top(float*, int64_t at, int64_t n) const { return greatest(x + at, n); }
  NOINLINE float exponentials(float* waiting, int64_t at, int64_t n, float top, bool) const {
    return map_and_sum(waiting, n, ExpFrom{top, scale * kLog2E}, Identity{},
                       Prefetched<T>{x + at, kPrefetchDistance<T>});
  }
};

// A row with a mask or with a negative scale: its scores are buffered until their maximum is known.
template <class T>
struct MaskedRow {
  const T* x;
  const char* mask;
  DType dtype;
  float scale;
  NOINLINE void scores(float* waiting, int64_t at, int64_t n) const {
    if (!mask)
      map(waiting, n, Scaled{scale}, x + at);
    else if (dtype == kBool)
      map(waiting, n, ScaledIf{scale}, x + at, Bools{mask} + at);
    else
      map(waiting, n, ScaledPlus{scale}, x + at, AnyDtype({mask, dtype}) + at);
  }
  INLINE float top(float* waiting, int64_t at, int64_t n) const {
    scores(waiting, at, n);
    return reduce(-__builtin_inff(), n, Max{}, Identity{}, static_cast<const float*>(waiting));
  }
  NOINLINE float exponentials(float* waiting, int64_t at, int64_t n, float top, bool again) const {
    if (again) scores(waiting, at, n);
    return map_and_sum(waiting, n, ExpFrom{top, kLog2E}, Identity{}, static_cast<const float*>(waiting));
  }
};

INLINE float finite_top(float top) {  // if all scores are -inf, every exponential is zero
  return top == -__builtin_inff() ? 0.f : top;
}
INLINE Scaled share_of(double sum) { return {sum == 0 ? 0.f : static_cast<float>(1 / sum)}; }

// Exponentials are buffered in float32, in the first-level cache, until their sum is known. A row that is
// longer than the buffer computes them twice.
template <class T, class Row>
INLINE void softmax_row(T* out, const Row& row, int64_t dim, bool streamed) {
  alignas(64) float waiting[kWaiting];
  const bool again = dim > kWaiting;
  float top = -__builtin_inff();
  for (int64_t i = 0; i < dim; i += kWaiting) {
    const float each = row.top(waiting, i, waiting_from(i, dim));
    top = each > top ? each : top;
  }
  top = finite_top(top);
  double sum = 0;
  for (int64_t i = 0; i < dim; i += kWaiting)
    sum += row.exponentials(waiting, i, waiting_from(i, dim), top, again);
  const Scaled share = share_of(sum);
  for (int64_t i = 0; i < dim; i += kWaiting) {
    if (again) row.exponentials(waiting, i, waiting_from(i, dim), top, again);
    map(streamed, out + i, waiting_from(i, dim), share, static_cast<const float*>(waiting));
  }
}

// The exponentials of a row that is streamed from memory to memory. Those in whole lines of `out` are
// buffered at their own places, those at its ends in separate vectors. A recent store must be read back in
// the same pieces, or the load waits for all stores before it.
template <class T>
struct StreamedSoftmax {
  const int64_t dim;
  float sum;
  alignas(64) float room[kWaiting + LANES];
  Vec ends[2 * kLine<T> / LANES];

  INLINE explicit StreamedSoftmax(int64_t dim_)
      : dim(dim_), sum(0) {}  // the other members are written before they are read

  // Writes a row to `out` and stores the exponentials of x in its place, or does one of the two.
  template <bool kWrite, bool kExp>
  INLINE void pass(const WholeLines& lines, T* out, const T* x, ExpFrom exp) {
    float* const waiting = room + (-lines.begin & (LANES - 1));
    const Scaled share = share_of(sum);
    Vec sums[4] = {};
    const auto at_vector = [&](int64_t at, int j) __attribute__((always_inline)) {
      Vec v;
      if constexpr (kExp) v = exp(load(Prefetched<T>{x + at, kPrefetchDistance<T>}));
      if constexpr (kWrite) stream(out + at, share(load(waiting + at)));
      if constexpr (kExp) store(waiting + at, v), sums[j] += v;
    };
    int64_t i = lines.begin;
    for (; i + 4 * LANES <= lines.end; i += 4 * LANES)
      for (int j = 0; j < 4; ++j) at_vector(i + j * LANES, j);
    for (; i < lines.end; i += LANES) at_vector(i, 0);
    Vec* kept = ends;
    at_ends(lines, dim, [&](int64_t at, int64_t first, int64_t end) __attribute__((always_inline)) {
      if constexpr (kWrite) store_lanes(out + at, share(*kept), first, end);
      if constexpr (kExp) *kept = exp(load(x + at)), sums[1] += lanes(first, end, *kept);
      ++kept;
    });
    if constexpr (kExp) sum = across((sums[0] + sums[1]) + (sums[2] + sums[3]), Plus{});
  }
};

// Writes each row while it reads the next one, if lines begin at the same places in both.
template <class T>
void softmax_streamed(T* out, const T* x, const Rows& rows, float scale) {
  const int64_t dim = rows.dim;
  const bool alike = dim % kLine<T> == 0;
  StreamedSoftmax<T> row(dim);
  for (int64_t r = 0; r < rows.count; ++r, x += dim, out += dim) {
    const WholeLines lines = whole_lines(out, dim);
    const ExpFrom exp{finite_top(greatest(x, dim)), scale * kLog2E};
    fetch_end_of_next(lines, out, dim);
    if (r && alike) {
      row.template pass<true, true>(lines, out - dim, x, exp);
    } else {
      if (r) row.template pass<true, false>(whole_lines(out - dim, dim), out - dim, x, exp);
      row.template pass<false, true>(lines, out, x, exp);
    }
  }
  row.template pass<true, false>(whole_lines(out - dim, dim), out - dim, x, {0});
  end_of_stream();
}

template <class T>
void softmax(void* out_, const void* x_, AnyRows mask, const Rows& rows, float scale) {
  T* out = static_cast<T*>(out_);
  const T* x = static_cast<const T*>(x_);
  const char* keep = static_cast<const char*>(mask.first.data);
  const bool growing = !keep && scale > 0.f && scale < __builtin_inff();
  if (growing && rows.stream && rows.count && rows.dim >= kLine<T> && rows.dim <= kWaiting)
    return softmax_streamed(out, x, rows, scale);
  for (int64_t r = 0; r < rows.count; ++r, x += rows.dim, out += rows.dim) {
    if (growing)
      softmax_row(out, GrowingRow<T>{x, scale}, rows.dim, rows.stream);
    else
      softmax_row(out, MaskedRow<T>{x, keep, mask.first.dtype, scale}, rows.dim, rows.stream);
    if (keep) keep += mask.step;
  }
  if (rows.stream) end_of_stream();
}

// Points (a, b) of the plane, each rotated by its own angle.
struct Points {
  Vec a, b;
  INLINE Points rotate(Vec cos, Vec sin) const { return {a * cos - b * sin, b * cos + a * sin}; }
};

template <int kFrom, int... I>
INLINE Vec every_other(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I + kFrom)...);
}
template <int kFrom, int... I>
INLINE Vec in_turns(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (kFrom + I / 2 + I % 2 * LANES)...);
}

// Pairs (i, i + pairs) of a row, LANES of them from index i.
template <class T>
struct Halves {
  static constexpr bool kHalves = true;
  INLINE static Points load_from(const T* row, int64_t i, int64_t pairs) {
    return {load(row + i), load(row + pairs + i)};
  }
  INLINE static void store_to(T* row, int64_t i, int64_t pairs, Points v) {
    store(row + i, v.a);
    store(row + pairs + i, v.b);
  }
};

// Pairs (2i, 2i + 1).
template <class T>
struct Neighbours {
  static constexpr bool kHalves = false;
  INLINE static Points load_from(const T* row, int64_t i, int64_t) {
    const Vec first = load(row + 2 * i), second = load(row + 2 * i + LANES);
    return {every_other<0>(first, second, Lanes{}), every_other<1>(first, second, Lanes{})};
  }
  INLINE static void store_to(T* row, int64_t i, int64_t, Points v) {
    store(row + 2 * i, in_turns<0>(v.a, v.b, Lanes{}));
    store(row + 2 * i + LANES, in_turns<LANES / 2>(v.a, v.b, Lanes{}));
  }
};

// As in map(), the last pairs overlap those before them and are read before anything is written.
template <class Layout, class T>
INLINE void rotate(T* out, const T* x, AnyDtype cos, AnyDtype sin, int64_t pairs) {
  const int64_t rest = pairs - LANES;
  const Points last = Layout::load_from(x, rest, pairs).rotate(load(cos + rest), load(sin + rest));
  for (int64_t i = 0; i < rest; i += LANES)
    Layout::store_to(out, i, pairs, Layout::load_from(x, i, pairs).rotate(load(cos + i), load(sin + i)));
  Layout::store_to(out, rest, pairs, last);
}

// Fewer pairs than a vector holds: they are computed in copies of a whole vector.
template <class Layout, class T>
INLINE void rotate_few(T* out, const T* x, AnyDtype cos, AnyDtype sin, int64_t pairs) {
  T copy[2 * LANES] = {};
  const int64_t second =
      Layout::kHalves ? LANES : pairs;  // where the copy has the elements that follow the first `pairs`
  for (int64_t i = 0; i < pairs; ++i) {
    copy[i] = x[i];
    copy[second + i] = x[pairs + i];
  }
  const Points v = Layout::load_from(copy, 0, LANES).rotate(load(cos, pairs), load(sin, pairs));
  Layout::store_to(copy, 0, LANES, v);
  for (int64_t i = 0; i < pairs; ++i) {
    out[i] = copy[i];
    out[pairs + i] = copy[second + i];
  }
}

template <template <class> class Layout, class T>
void rope(void* out_, const void* x_, AnyRows cos, AnyRows sin, const Rows& rows, int64_t pairs) {
  T* out = static_cast<T*>(out_);
  const T* x = static_cast<const T*>(x_);
  for (int64_t r = 0; r < rows.count; ++r, x += rows.dim, out += rows.dim) {
    const AnyDtype c(cos.first), s(sin.first);
    if (pairs < LANES)
      rotate_few<Layout<T>>(out, x, c, s, pairs);
    else
      rotate<Layout<T>>(out, x, c, s, pairs);
    if (out != x) __builtin_memcpy(out + 2 * pairs, x + 2 * pairs, (rows.dim - 2 * pairs) * sizeof(T));
    cos.first.data = static_cast<const char*>(cos.first.data) + cos.step;
    sin.first.data = static_cast<const char*>(sin.first.data) + sin.step;
  }
}

// Puts the kernels for arrays of T into the table.
template <class T>
constexpr void add_row_kernels(RowKernels& all, DType dtype) {
  all.softmax[dtype] = softmax<T>;
  all.rms_norm[dtype][0] = rms_norm<T, T>;
  all.rms_norm[dtype][1] = rms_norm<T, float>;
  all.add_rms_norm[dtype] = add_rms_norm<T>;
  all.layer_norm[dtype] = layer_norm<T>;
  all.rope[0][dtype] = rope<Halves, T>;
  all.rope[1][dtype] = rope<Neighbours, T>;
}

}  // namespace
}  // namespace cpu::ISA

#endif
