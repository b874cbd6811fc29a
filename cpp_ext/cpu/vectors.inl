// Vectors of LANES floats, how they are loaded from and stored to each dtype, and the two loops
// (map and reduce) that every kernel is made of. Included by kernels.inl once per instruction set.

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t Int __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Bits16 __attribute__((vector_size(2 * LANES)));
// What memory holds: GCC 12 would send a memcpy through the stack, six times slower.
typedef float VecInMemory __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t Bits16InMemory __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

using Lanes = std::make_integer_sequence<int, LANES>;

INLINE Vec set(float value) { return Vec{} + value; }

template <int... I>
INLINE Int counted(std::integer_sequence<int, I...>) {
  return Int{I...};
}

INLINE Vec load(const float* p) { return *reinterpret_cast<const VecInMemory*>(p); }
INLINE void store(float* p, Vec v) { *reinterpret_cast<VecInMemory*>(p) = v; }

INLINE Vec load(const BFloat16* p) {
  const Bits16 bits = *reinterpret_cast<const Bits16InMemory*>(p);
  return (Vec)(__builtin_convertvector(bits, Bits) << 16);
}

INLINE Bits16 rounded(Vec v, BFloat16) {  // to nearest even; a NaN keeps its upper bits and stays one
  const Bits bits = (Bits)v;
  const Bits upper = v == v ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : (bits >> 16) | 0x40;
  return __builtin_convertvector(upper, Bits16);
}

#ifdef WIDEN_F16
INLINE Vec load(const Float16* p) { return WIDEN_F16(p); }
INLINE Bits16 rounded(Vec v, Float16) { return NARROW_F16(v); }
#else
// A float16 is a float32 whose exponent is 112 too small; one multiplication mends that, for
// subnormals too. Infinities and NaN (exponent 31) get float32's largest exponent instead.
INLINE Vec load(const Float16* p) {
  const Bits bits = __builtin_convertvector(*reinterpret_cast<const Bits16InMemory*>(p), Bits);
  const Bits magnitude = (bits & 0x7fff) << 13;
  const Vec finite = (Vec)magnitude * 0x1p112f;
  const Bits wide = magnitude >= (0x7c00u << 13) ? magnitude | 0x7f800000u : (Bits)finite;
  return (Vec)(wide | ((bits & 0x8000) << 16));
}

// Adding a power of two that is 2^10 (or, for float16's subnormals, 2^-14 / 2^-24) times as large
// makes the addition itself round to float16's precision, to nearest even.
INLINE Bits16 rounded(Vec v, Float16) {
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
  *reinterpret_cast<Bits16InMemory*>(p) = rounded(v, T{});
}

// Around the caches, to an address that is aligned to the vector.
#ifdef STREAM_F32
INLINE void stream(float* p, Vec v) { STREAM_F32(p, v); }
template <class T>
INLINE void stream(T* p, Vec v) {
  STREAM_16(p, rounded(v, T{}));
}
INLINE void end_of_stream() { _mm_sfence(); }
#else
template <class T>
INLINE void stream(T* p, Vec v) {
  store(p, v);
}
INLINE void end_of_stream() {}
#endif

// n < LANES elements; the other lanes read as zero, and are not written.
template <class T>
INLINE Vec load(const T* p, int64_t n) {
  T part[LANES] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return load(part);
}
template <class T>
INLINE void store(T* p, Vec v, int64_t n) {
  T part[LANES];
  store(part, v);
  for (int64_t i = 0; i < n; ++i) p[i] = part[i];
}

// An input that fetches what is needed next into the second-level cache: the memory works while a kernel
// computes on a row that it has read before.
template <class T>
struct Ahead {
  const T* p;
  int64_t by;
  INLINE Ahead operator+(int64_t i) const { return {p + i, by}; }
};
template <class T>
INLINE Vec load(Ahead<T> in) {
  __builtin_prefetch(in.p + in.by, 0, 2);
  return load(in.p);
}
template <class T>
INLINE Vec load(Ahead<T> in, int64_t n) {
  return load(in.p, n);
}

// out[i] = f(in[i]...). The last vector overlaps the one before it: its input is read before anything
// is written, so that `out` may be an input.
template <class T, class F, class... In>
INLINE void map(T* out, int64_t n, const F& f, In... in) {
  if (n < LANES) {
    if (n > 0) store(out, f(load(in, n)...), n);
    return;
  }
  const Vec last = f(load(in + (n - LANES))...);
  for (int64_t i = 0; i + LANES < n; i += LANES) store(out + i, f(load(in + i)...));
  store(out + n - LANES, last);
}

// The same for a result that will not stay in the caches.
template <class T, class F, class... In>
INLINE void map_streamed(T* out, int64_t n, const F& f, In... in) {
  const int64_t width = sizeof(T) * LANES;
  const int64_t misaligned = reinterpret_cast<uintptr_t>(out) % width / sizeof(T);
  const int64_t head = misaligned ? LANES - misaligned : 0;
  if (n < head + LANES) return map(out, n, f, in...);
  map(out, head, f, in...);
  int64_t i = head;
  for (; i + LANES <= n; i += LANES) stream(out + i, f(load(in + i)...));
  map(out + i, n - i, f, (in + i)...);
}

template <class T, class F, class... In>
INLINE void map(bool streamed, T* out, int64_t n, const F& f, In... in) {
  if (streamed)
    map_streamed(out, n, f, in...);
  else
    map(out, n, f, in...);
}

struct Plus {
  INLINE Vec operator()(Vec a, Vec b) const { return a + b; }
};
struct Max {  // of numbers: a NaN may be passed over
  INLINE Vec operator()(Vec a, Vec b) const { return a > b ? a : b; }
};
struct Same {
  INLINE Vec operator()(Vec v) const { return v; }
};
struct Square {
  INLINE Vec operator()(Vec v) const { return v * v; }
};

template <int kDistance, int... I>
INLINE Vec swapped(Vec v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I ^ kDistance)...);
}

// Joins all lanes, in log2(LANES) steps.
template <int kDistance = LANES / 2, class Join>
INLINE float across(Vec v, const Join& join) {
  v = join(v, swapped<kDistance>(v, Lanes{}));
  if constexpr (kDistance > 1)
    return across<kDistance / 2>(v, join);
  else
    return v[0];
}

// join of `neutral` and f(in[i]...) over all i; joining with `neutral` must change nothing.
template <class Join, class F, class... In>
INLINE float reduce(float neutral, int64_t n, const Join& join, const F& f, In... in) {
  constexpr int kChains = 4;  // enough to hide an addition's latency
  Vec acc[kChains] = {set(neutral), set(neutral), set(neutral), set(neutral)};
  int64_t i = 0;
  for (; i + kChains * LANES <= n; i += kChains * LANES)
    for (int j = 0; j < kChains; ++j) acc[j] = join(acc[j], f(load(in + i + j * LANES)...));
  for (; i + LANES <= n; i += LANES) acc[0] = join(acc[0], f(load(in + i)...));
  if (i < n) {
    const Int lane = counted(Lanes{});
    acc[1] = join(acc[1], lane < (int32_t)(n - i) ? f(load(in + i, n - i)...) : set(neutral));
  }
  return across(join(join(acc[0], acc[1]), join(acc[2], acc[3])), join);
}

#ifndef GUESS_RECIPROCAL
INLINE Vec reciprocal(Vec d) { return 1.f / d; }
#else
INLINE Vec reciprocal(Vec d) {  // 14 bits, doubled by one step of Newton's
  const Vec guess = (Vec)GUESS_RECIPROCAL(d);
  return guess * (2.f - d * guess);
}
#endif

// 1.5 * 2^23: adding it leaves no room for a fraction, and the whole number in the low bits.
constexpr float kRound = 12582912.f;
#ifndef TIMES_2_TO_THE
// p * 2^k for k + kRound. A multiplication, since an addition to the bits of a NaN may make a number of it.
INLINE Vec times_2_to_the(Vec shifted, Vec p) { return p * (Vec)(((Int)shifted << 23) + 0x3f800000); }
#define TIMES_2_TO_THE(shifted, p) times_2_to_the(shifted, p)
#endif

// 2^t for t <= 0: 2^k * 2^f with k whole and |f| <= 1/2, the latter by a polynomial (minimax, of degree 5,
// fitted to the relative error: 1.6e-7 with roundings). Zero below -126, NaN for NaN.
INLINE Vec exp2_of_negative(Vec t) {
  const Vec shifted = t + kRound;
  const Vec f = t - (shifted - kRound);
  Vec p = set(1.326472731e-3f);
  p = p * f + 9.671512991e-3f;
  p = p * f + 5.550733581e-2f;
  p = p * f + 2.402224243e-1f;
  p = p * f + 6.931470037e-1f;
  p = p * f + 1.f;
  return t < -126.f ? Vec{} : TIMES_2_TO_THE(shifted, p);
}

constexpr float kLog2E = 1.44269504f;

// x / (1 + 2^-t), t having the sign of x. The power is taken of -|t|, so that nothing overflows.
INLINE Vec times_sigmoid(Vec x, Vec t) {
  const Vec e = exp2_of_negative((Vec)((Bits)t | 0x80000000u));
  return (x < 0.f ? x * e : x) * reciprocal(e + 1.f);
}

// out[i] = f(x[i]), and their sum.
template <class F, class In>
INLINE float map_and_sum(float* out, int64_t n, const F& f, In x) {
  Vec sum[2] = {Vec{}, Vec{}};
  int64_t i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES)
    for (int j = 0; j < 2; ++j) {
      const Vec v = f(load(x + i + j * LANES));
      store(out + i + j * LANES, v);
      sum[j] += v;
    }
  float rest = 0.f;
  if (i < n) {
    map(out + i, n - i, f, x + i);
    rest = reduce(0.f, n - i, Plus{}, Same{}, out + i);
  }
  return across(sum[0] + sum[1], Plus{}) + rest;
}
