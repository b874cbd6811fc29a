// Vectors of LANES floats, their loads and stores for each dtype, and the two loops (map and reduce) that
// every kernel uses.
#ifndef AIRLLM_VECTORS_INL
#define AIRLLM_VECTORS_INL
#ifndef ISA
#include "../targets/editor.h"
#endif

namespace cpu::ISA {
namespace {

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t Int __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Bits16 __attribute__((vector_size(2 * LANES)));
typedef int16_t Pairs __attribute__((vector_size(4 * LANES)));  // sums of products of two bytes: PAIRS_U8_I8
// Vectors in memory. GCC 12 compiles a memcpy to a copy through the stack, which is six times slower.
typedef float VecInMemory __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t Bits16InMemory __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

using Lanes = std::make_integer_sequence<int, LANES>;

INLINE Vec set(float value) { return Vec{} + value; }

template <int... I>
INLINE Int lane_numbers(std::integer_sequence<int, I...>) {
  return Int{I...};
}

INLINE Vec load(const float* p) { return *reinterpret_cast<const VecInMemory*>(p); }
INLINE void store(float* p, Vec v) { *reinterpret_cast<VecInMemory*>(p) = v; }

#ifdef WIDEN_U16  // GCC would widen each half of the vector, and join them
INLINE Bits widen_u16(const void* p) { return WIDEN_U16(p); }
#else
INLINE Bits widen_u16(const void* p) {
  return __builtin_convertvector(*static_cast<const Bits16InMemory*>(p), Bits);
}
#endif

#ifdef PERMUTES_HALVES
typedef uint16_t Halved __attribute__((vector_size(4 * LANES)));
template <int... I>
INLINE Bits16 upper_halves(Halved v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (2 * I + 1)...);
}
INLINE Bits16 upper_halves(Bits v) { return upper_halves((Halved)v, Lanes{}); }
template <int... I>
INLINE Halved each_twice(std::integer_sequence<int, I...>) {
  return Halved{static_cast<uint16_t>(I / 2)...};
}
INLINE Vec load(const BFloat16* p) {
  return UPPER_HALVES_FROM(p, each_twice(std::make_integer_sequence<int, 2 * LANES>{}));
}
#else
INLINE Bits16 upper_halves(Bits v) { return __builtin_convertvector(v >> 16, Bits16); }
INLINE Vec load(const BFloat16* p) { return (Vec)(widen_u16(p) << 16); }
#endif

#ifdef NARROW_BF16  // a third of the instructions; values below 2^-126 become zero
INLINE Bits16 round_to(Vec v, BFloat16) { return NARROW_BF16(v); }
#else
INLINE Bits16 round_to(Vec v, BFloat16) {  // to nearest even; a NaN keeps its upper bits and stays a NaN
  const Bits bits = (Bits)v, odd = (bits >> 16) & 1;
  return upper_halves(v == v ? bits + 0x7fff + odd : bits | 0x400000);
}
#endif

#ifdef WIDEN_F16
INLINE Vec load(const Float16* p) { return WIDEN_F16(p); }
INLINE Bits16 round_to(Vec v, Float16) { return NARROW_F16(v); }
#else
// A float16 is a float32 whose exponent is 112 too small. One multiplication corrects that, for subnormals
// too. Infinities and NaN (exponent 31) get float32's largest exponent instead.
INLINE Vec load(const Float16* p) {
  const Bits bits = widen_u16(p), magnitude = (bits & 0x7fff) << 13;
  const Vec finite = (Vec)magnitude * 0x1p112f;
  const Bits wide = magnitude >= (0x7c00u << 13) ? magnitude | 0x7f800000u : (Bits)finite;
  return (Vec)(wide | ((bits & 0x8000) << 16));
}

// Adding a power of two that is 2^10 (or, for float16's subnormals, 2^-14 / 2^-24) times as large makes the
// addition itself round to float16's precision, to nearest even.
INLINE Bits16 round_to(Vec v, Float16) {
  const Bits bits = (Bits)v, sign = bits & 0x80000000u, twice = bits + bits;
  const Vec scaled = (Vec)(bits ^ sign) * 0x1p112f * 0x1p-110f;  // overflows to infinity where float16 does
  const Bits exponent = twice & 0xff000000u;
  const Bits bias = exponent < 0x71000000u ? Bits{} + 0x71000000u : exponent;
  const Bits sum = (Bits)((Vec)((bias >> 1) + 0x07800000u) + scaled);
  const Bits magnitude = ((sum >> 13) & 0x7c00u) + (sum & 0xfffu);
  const Bits half = (twice > 0xff000000u ? Bits{} + 0x7e00u : magnitude) | (sign >> 16);
  return __builtin_convertvector(half, Bits16);
}
#endif

template <class T>
INLINE void store(T* p, Vec v) {
  *reinterpret_cast<Bits16InMemory*>(p) = round_to(v, T{});
}

// The value that store(p, v) wrote.
INLINE Vec as_stored(const float*, Vec v) { return v; }
template <class T>
INLINE Vec as_stored(const T* p, Vec) {
  return load(p);
}

// Stores that bypass the caches, to an address aligned to the vector.
#ifdef STREAM_F32
INLINE void stream(float* p, Vec v) { STREAM_F32(p, v); }
template <class T>
INLINE void stream(T* p, Vec v) {
  STREAM_16(p, round_to(v, T{}));
}
INLINE void end_of_stream() { _mm_sfence(); }
#else
template <class T>
INLINE void stream(T* p, Vec v) {
  store(p, v);
}
INLINE void end_of_stream() {}
#endif

// Loads at most LANES elements; the other lanes are zero.
template <class T>
INLINE Vec load(const T* p, int64_t n) {
  if (n == LANES) return load(p);
  T part[LANES] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return load(part);
}
// Stores lanes [first, end) and does not access the memory around them.
template <class T>
INLINE void store_lanes(T* p, Vec v, int64_t first, int64_t end) {
  if (end - first == LANES) return store(p, v);
  T part[LANES];
  store(part, v);
  for (int64_t i = first; i < end; ++i) {
    __asm__("");  // no memcpy: a read of several elements would wait for the store above
    p[i] = part[i];
  }
}
template <class T>
INLINE void store(T* p, Vec v, int64_t n) {
  store_lanes(p, v, 0, n);
}

// An input that prefetches later elements into the second-level cache, so that memory works while a kernel
// computes on a row that it has read before.
template <class T>
struct Prefetched {
  const T* p;
  int64_t by;
  INLINE Prefetched operator+(int64_t i) const { return {p + i, by}; }
};
template <class T>
INLINE Vec load(Prefetched<T> in) {
  __builtin_prefetch(in.p + in.by, 0, 2);
  return load(in.p);
}
template <class T>
INLINE Vec load(Prefetched<T> in, int64_t n) {
  return load(in.p, n);
}

// An input whose dtype is known only at run time. It costs a well-predicted branch per vector, and saves a
// kernel per dtype.
struct AnyDtype {
  const char* p;
  DType dtype;
  explicit INLINE AnyDtype(AnyValues values)
      : p(static_cast<const char*>(values.data)), dtype(values.dtype) {}
  INLINE AnyDtype operator+(int64_t i) const {
    AnyDtype moved = *this;
    moved.p += i << (dtype == kFloat32 ? 2 : 1);
    return moved;
  }
  template <class T>
  INLINE const T* as() const {
    return reinterpret_cast<const T*>(p);
  }
};
INLINE DType hide_from_compiler(DType dtype) {  // otherwise it would compile one loop per dtype
  __asm__("" : "+r"(dtype));
  return dtype;
}
INLINE Vec load(AnyDtype in) {
  const DType dtype = hide_from_compiler(in.dtype);
  if (dtype == kFloat32) return load(in.as<float>());
  return dtype == kFloat16 ? load(in.as<Float16>()) : load(in.as<BFloat16>());
}
INLINE Vec load(AnyDtype in, int64_t n) {
  if (n == LANES) return load(in);
  char part[4 * LANES] = {};
  const int64_t bytes = in.dtype == kFloat32 ? 4 * n : 2 * n;
  for (int64_t i = 0; i < bytes; ++i) part[i] = in.p[i];
  in.p = part;
  return load(in);
}

// NumPy's bools as signs: negative if true.
typedef uint8_t BoolBytes __attribute__((vector_size(LANES)));
typedef uint8_t BoolBytesInMemory __attribute__((vector_size(LANES), aligned(1), may_alias));
struct Bools {
  const char* p;
  INLINE Bools operator+(int64_t i) const { return {p + i}; }
};
INLINE Vec load(Bools in) {
  return (Vec) - __builtin_convertvector(*reinterpret_cast<const BoolBytesInMemory*>(in.p), Int);
}
INLINE Vec load(Bools in, int64_t n) {
  char part[LANES] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = in.p[i];
  return load(Bools{part});
}

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Elements [begin, end) of a row: the whole cache lines, which are streamed. The row shares the lines at both
// ends with its neighbours. Those are stored through the caches, since writing a part of a line requires
// reading it first.
struct WholeLines {
  int64_t begin, end;
};
template <class T>
constexpr int64_t kLine = 64 / sizeof(T);
template <class T>
INLINE WholeLines whole_lines(const T* out, int64_t n) {
  const int64_t before = -(reinterpret_cast<uintptr_t>(out) / sizeof(T)) & (kLine<T> - 1);
  return {before, n - (n - before) % kLine<T>};
}

// Prefetches, for writing, the line that the next row shares with the row after it. A store that waits for
// its line would delay all streaming stores.
template <class T>
INLINE void fetch_end_of_next(const WholeLines& lines, const T* out, int64_t n) {
  if (lines.end < n) __builtin_prefetch(out + 2 * n - 1, 1);
}

// Calls visit(at, first, end) for each vector at element `at` with lanes [first, end) outside `lines`. The
// row has n elements, at least a line.
template <class Visit>
INLINE void at_ends(const WholeLines& lines, int64_t n, const Visit& visit) {
  for (int64_t i = 0; i < lines.begin; i += LANES) visit(i, int64_t{0}, smaller(lines.begin - i, LANES));
  for (int64_t i = lines.end; i < n; i += LANES) {
    const int64_t at = smaller(i, n - LANES);
    visit(at, i - at, int64_t{LANES});
  }
}

// out[i] = f(in[i]...). The last vector overlaps the one before it. Its input is read before anything is
// written, so `out` may be an input.
template <class T, class F, class... In>
INLINE void map(T* out, int64_t n, const F& f, In... in) {
  if (n < LANES) return store(out, f(load(in, n)...), n);
  const Vec last = f(load(in + (n - LANES))...);
  for (int64_t i = 0; i + LANES < n; i += LANES) store(out + i, f(load(in + i)...));
  store(out + n - LANES, last);
}

// The same; if `streamed`, whole lines bypass the caches. Several vectors are read before the first is
// written: a load waits for a pending store whose address has the same lower 12 bits (the whole takes three
// times as long if arrays are 48 bytes apart). The ends are computed from the inputs again: reading vectors
// back in other pieces would wait for all stores before them.
template <class T, class F, class... In>
INLINE void map(bool streamed, T* out, int64_t n, const F& f, In... in) {
  if (!streamed || n < kLine<T>) return map(out, n, f, in...);
  constexpr int64_t kTogether = 4;
  const WholeLines lines = whole_lines(out, n);
  fetch_end_of_next(lines, out, n);
  int64_t i = lines.begin;
  for (; i + kTogether * LANES <= lines.end; i += kTogether * LANES) {
    Vec v[kTogether];
    for (int j = 0; j < kTogether; ++j) v[j] = f(load(in + (i + j * LANES))...);
    for (int j = 0; j < kTogether; ++j) stream(out + i + j * LANES, v[j]);
  }
  for (; i < lines.end; i += LANES) stream(out + i, f(load(in + i)...));
  at_ends(lines, n, [&](int64_t at, int64_t first, int64_t end) __attribute__((always_inline)) {
    store_lanes(out + at, f(load(in + at)...), first, end);
  });
}

struct Plus {
  INLINE Vec operator()(Vec a, Vec b) const { return a + b; }
};
struct Max {  // of numbers: may ignore a NaN
  INLINE Vec operator()(Vec a, Vec b) const { return a > b ? a : b; }
};
struct Least {
  INLINE Vec operator()(Vec a, Vec b) const { return a < b ? a : b; }
};
struct Identity {
  INLINE Vec operator()(Vec v) const { return v; }
};
struct Square {
  INLINE Vec operator()(Vec v) const { return v * v; }
};

// Swaps each lane with the lane kDistance away.
template <int kDistance, class V, int... I>
INLINE V swap_lanes(V v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I ^ kDistance)...);
}

// Joins all lanes in log2(LANES) steps.
template <int kDistance = LANES / 2, class Join>
INLINE float across(Vec v, const Join& join) {
  v = join(v, swap_lanes<kDistance>(v, Lanes{}));
  if constexpr (kDistance > 1)
    return across<kDistance / 2>(v, join);
  else
    return v[0];
}

// The first n lanes of v; the other lanes are `otherwise`.
INLINE Vec first_lanes(int64_t n, Vec v, float otherwise = 0.f) {
  return lane_numbers(Lanes{}) < static_cast<int32_t>(n) ? v : set(otherwise);
}
INLINE Vec lanes(int64_t first, int64_t end, Vec v) {
  return lane_numbers(Lanes{}) < static_cast<int32_t>(first) ? Vec{} : first_lanes(end, v);
}

// Joins `neutral` and f(in[i]...) for all i. Joining with `neutral` must change nothing.
template <class Join, class F, class... In>
INLINE float reduce(float neutral, int64_t n, const Join& join, const F& f, In... in) {
  constexpr int kChains = 4;  // enough to hide an addition's latency
  Vec acc[kChains] = {set(neutral), set(neutral), set(neutral), set(neutral)};
  int64_t i = 0;
  for (; i + kChains * LANES <= n; i += kChains * LANES)
    for (int j = 0; j < kChains; ++j) acc[j] = join(acc[j], f(load(in + i + j * LANES)...));
  for (; i + LANES <= n; i += LANES) acc[0] = join(acc[0], f(load(in + i)...));
  if (i < n) acc[1] = join(acc[1], first_lanes(n - i, f(load(in + i, n - i)...), neutral));
  return across(join(join(acc[0], acc[1]), join(acc[2], acc[3])), join);
}

// The largest of n > 0 elements. Vectors overlap at both ends, so that no vector between them crosses a cache
// line.
template <class T>
INLINE float greatest(const T* in, int64_t n) {
  if (n < LANES) return reduce(-__builtin_inff(), n, Max{}, Identity{}, in);
  Vec acc[4];
  for (Vec& each : acc) each = load(in);
  int64_t i = -(reinterpret_cast<uintptr_t>(in) / sizeof(T)) & (LANES - 1);
  for (; i + 4 * LANES <= n; i += 4 * LANES)
    for (int j = 0; j < 4; ++j) acc[j] = Max{}(acc[j], load(in + i + j * LANES));
  for (; i < n; i += LANES) acc[0] = Max{}(acc[0], load(in + smaller(i, n - LANES)));
  return across(Max{}(Max{}(acc[0], acc[1]), Max{}(acc[2], acc[3])), Max{});
}

// The sum of f(in[i]...), in blocks, so that a long sum is as accurate as a short one.
constexpr int64_t kSummed = 512 * LANES;  // in a block: 128 additions to each partial sum
template <class F, class... In>
INLINE float sum(int64_t n, const F& f, In... in) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kSummed)
    total += reduce(0.f, n - i < kSummed ? n - i : kSummed, Plus{}, f, (in + i)...);
  return static_cast<float>(total);
}

// 1.5 * 2^23: adding it rounds to a whole number, which is then in the low bits.
constexpr float kRound = 12582912.f;
constexpr float kLog2E = 1.44269504f;

#ifdef TIMES_2_TO_THE_FLOOR
// 2^t = 2^floor(t) * 2^f with 0 <= f < 1. A polynomial gives 2^f (minimax, of degree 5, fitted to the
// relative error: 1.4e-7 with roundings). The instructions handle infinities.
INLINE Vec exp2_of(Vec t, Vec f) {
  Vec p = set(1.867130399e-3f);
  p = p * f + 9.017029777e-3f;
  p = p * f + 5.579991266e-2f;
  p = p * f + 2.401644439e-1f;
  p = p * f + 6.931512952e-1f;
  return TIMES_2_TO_THE_FLOOR(p * f + 1.f, t);
}

// 2^t for t <= 0: zero below -149, NaN for NaN.
INLINE Vec exp2_of_negative(Vec t) { return exp2_of(t, FRACTION(t)); }
// 2^(t + rest); `rest` is what t cannot represent.
INLINE Vec exp2_of_negative(Vec t, Vec rest) { return exp2_of(t, FRACTION(t) + rest); }

// x / (1 + 2^-t)
INLINE Vec times_sigmoid(Vec x, Vec t) { return x / (exp2_of_negative(-t) + 1.f); }

#else
// 2^t = 2^k * 2^f with integer k and |f| <= 1/2. A polynomial gives 2^f (minimax, of degree 5, fitted to the
// relative error: 1.6e-7 with roundings). It is multiplied by 2^k: an addition to the bits of a NaN could
// turn it into a number.
INLINE Vec exp2_of(Vec t, Vec shifted, Vec f) {
  Vec p = set(1.326472731e-3f);
  p = p * f + 9.671512991e-3f;
  p = p * f + 5.550733581e-2f;
  p = p * f + 2.402224243e-1f;
  p = p * f + 6.931470037e-1f;
  p = (p * f + 1.f) * (Vec)(((Bits)shifted << 23) + 0x3f800000u);
  return t < -126.f ? Vec{} : p;
}

// 2^t for t <= 0: zero below -126, NaN for NaN.
INLINE Vec exp2_of_negative(Vec t) {
  const Vec shifted = t + kRound;
  return exp2_of(t, shifted, t - (shifted - kRound));
}
// 2^(t + rest); `rest` is what t cannot represent.
INLINE Vec exp2_of_negative(Vec t, Vec rest) {
  const Vec shifted = t + kRound;
  return exp2_of(t, shifted, t - (shifted - kRound) + rest);
}

// x / (1 + 2^-t), where t has the sign of x. It uses 2^-|t|, which cannot overflow.
INLINE Vec times_sigmoid(Vec x, Vec t) {
  const Vec e = exp2_of_negative((Vec)((Bits)t | 0x80000000u));
  return (x < 0.f ? x * e : x) / (e + 1.f);
}
#endif

// out[i] = f(in[i]...); returns the sum of g over the stored values.
template <class T, class F, class G, class... In>
INLINE float map_and_sum(T* out, int64_t n, const F& f, const G& g, In... in) {
  Vec total[2] = {Vec{}, Vec{}};
  int64_t i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES)
    for (int j = 0; j < 2; ++j) {
      const Vec v = f(load(in + i + j * LANES)...);
      store(out + i + j * LANES, v);
      total[j] += g(as_stored(out + i + j * LANES, v));
    }
  for (int64_t few; i < n; i += few) {
    few = smaller(n - i, LANES);
    store(out + i, f(load(in + i, few)...), few);
    total[0] += first_lanes(few, g(load(static_cast<const T*>(out + i), few)));
  }
  return across(total[0] + total[1], Plus{});
}

}  // namespace
}  // namespace cpu::ISA

#endif
