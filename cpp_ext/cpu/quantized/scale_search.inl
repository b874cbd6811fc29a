// Searches the scales of sub-blocks that make the weighted error of rounding small. A lane is a sub-block, so
// that sums add value after value. Each step rounds as in airllm/formats/scale_search.py, which defines it.
#ifndef AIRLLM_SCALE_SEARCH_INL
#define AIRLLM_SCALE_SEARCH_INL
#include "../simd/bytes.inl"

namespace cpu::ISA {
namespace {
namespace stored {

constexpr float kLeastMagnitude = 1e-15f;  // sub-blocks without a larger one count as zeros

// A product that the compiler does not fuse with a following addition, which would round once less.
INLINE Vec rounded(Vec product) {
#ifdef KEEP_IN_REGISTER
  KEEP_IN_REGISTER(product);
#else
  __asm__("" : "+m"(product));
#endif
  return product;
}
INLINE float rounded(float product) {
  __asm__("" : "+m"(product));
  return product;
}

// The nearest integers, ties to even. NaN gives 0.
INLINE Int nearest(Vec v) { return ((Int)(v + kRound) & 0x7fffff) - 0x400000; }
INLINE Vec nearest_in(Vec v, int least, int most) {
  const Int q = nearest(v), low = Int{} + least, high = Int{} + most, raised = q < low ? low : q;
  return to_float(raised > high ? high : raised);
}

INLINE Vec magnitude(Vec v) { return (Vec)((Bits)v & 0x7fffffffu); }

// The value of largest magnitude in each lane, the first of several.
template <int kSize>
INLINE Vec largest_of(const Vec* x) {
  Vec largest = x[0];
  for (int i = 1; i < kSize; ++i) largest = magnitude(x[i]) > magnitude(largest) ? x[i] : largest;
  return largest;
}

INLINE Vec unless_zero(Vec largest, Vec scale, Vec otherwise) {
  return magnitude(largest) < kLeastMagnitude ? otherwise : scale;
}

// first + 0.1 i + most
INLINE Vec stretched(float first, int i, int most) {
  return set(first + rounded(0.1f * static_cast<float>(i)) + static_cast<float>(most));
}

// Of the scales d that inverse(0), inverse(1) ... lead to, the one whose d q fits x best; and its q.
// `add_products` adds w x q and w q q of value i.
template <int kSize, class Inverse, class Rounding, class AddProducts>
INLINE Vec search_scale(Vec* q, const Vec* x, int tries, const Inverse& inverse, const Rounding& rounding,
                        const AddProducts& add_products) {
  Vec scale = {}, best = set(-1.f);
  for (int i = 0; i < kSize; ++i) q[i] = Vec{};
  for (int t = 0; t < tries; ++t) {
    const Vec by = inverse(t);
    Vec tried[kSize], xq = {}, qq = {};
    for (int i = 0; i < kSize; ++i) {
      tried[i] = rounding(rounded(by * x[i]));
      add_products(i, tried[i], xq, qq);
    }
    const Int better = (qq > 0.f) & (xq * xq > best * qq);
    scale = better ? xq / qq : scale;
    best = better ? scale * xq : best;
    for (int i = 0; i < kSize; ++i) q[i] = better ? tried[i] : q[i];
  }
  return scale;
}

// q from -most to most - 1; 19 scales are tried.
template <int kSize>
INLINE Vec search_symmetric(Vec* q, const Vec* x, int most) {
  const Vec largest = largest_of<kSize>(x);
  Vec weight[kSize], xw[kSize];
  for (int i = 0; i < kSize; ++i) {
    weight[i] = rounded(x[i] * x[i]);
    xw[i] = rounded(weight[i] * x[i]);
  }
  const Vec scale = search_scale<kSize>(
      q, x, 19,
      [&](int t) __attribute__((always_inline)) {  // 0, -9 ... -1, 1 ... 9
        return -stretched(0.f, t ? t - (t < 10 ? 10 : 9) : 0, most) / largest;
      },
      [&](Vec scaled) __attribute__((always_inline)) { return nearest_in(scaled, -most, most - 1); },
      [&](int i, Vec by, Vec& xq, Vec& qq) __attribute__((always_inline)) {
        xq += rounded(xw[i] * by);
        qq += rounded(weight[i] * by * by);
      });
  for (int i = 0; i < kSize; ++i) q[i] = unless_zero(largest, q[i], set(static_cast<float>(-most)));
  return unless_zero(largest, scale, Vec{});
}

// The same, for few bits: one scale, after which each q changes if the error becomes smaller.
template <int kSize>
INLINE Vec search_one_by_one(Vec* q, const Vec* x, int most) {
  const Vec largest = largest_of<kSize>(x), inverse = set(static_cast<float>(-most)) / largest;
  Vec weight[kSize], xw[kSize], xq = {}, qq = {};
  for (int i = 0; i < kSize; ++i) {
    q[i] = nearest_in(rounded(inverse * x[i]), -most, most - 1);
    weight[i] = rounded(x[i] * x[i]);
    xw[i] = rounded(weight[i] * x[i]);
    xq += rounded(xw[i] * q[i]);
    qq += rounded(weight[i] * q[i] * q[i]);
  }
  for (int pass = 0; pass < 5; ++pass)
    for (int i = 0; i < kSize; ++i) {
      const Vec rest_xq = xq - rounded(xw[i] * q[i]), rest_qq = qq - rounded(weight[i] * q[i] * q[i]);
      const Vec changed = nearest_in(x[i] * rest_qq / rest_xq, -most, most - 1);
      const Vec new_xq = rest_xq + rounded(xw[i] * changed),
                new_qq = rest_qq + rounded(weight[i] * changed * changed);
      const Int better =
          (rest_xq > 0.f) & (changed != q[i]) & (new_qq > 0.f) & (new_xq * new_xq * qq > xq * xq * new_qq);
      q[i] = better ? changed : q[i];
      xq = better ? new_xq : xq;
      qq = better ? new_qq : qq;
    }
  for (int i = 0; i < kSize; ++i) q[i] = unless_zero(largest, q[i], set(static_cast<float>(-most)));
  return unless_zero(largest, qq > 0.f ? xq / qq : Vec{}, Vec{});
}

struct ScaleAndStart {
  Vec scale, start;  // x = scale q + start
};

// The sums of a sub-block that do not depend on q.
template <int kSize>
struct Weighted {
  static constexpr bool kAbsolute = kSize == 16;  // the error is a sum of magnitudes, not of squares
  const Vec *x, *weight;
  Vec total = {}, total_x = {};

  INLINE Weighted(const Vec* x, const Vec* weight) : x(x), weight(weight) {
    for (int i = 0; i < kSize; ++i) {
      total += weight[i];
      total_x += rounded(weight[i] * x[i]);
    }
  }

  INLINE Vec error(const Vec* q, ScaleAndStart by) const {
    Vec sum = {};
    for (int i = 0; i < kSize; ++i) {
      const Vec difference = rounded(by.scale * q[i]) + by.start - x[i];
      sum += rounded(weight[i] * (kAbsolute ? magnitude(difference) : rounded(difference * difference)));
    }
    return sum;
  }

  // Least squares with start <= 0. Lanes whose `determinant` is not positive have no solution.
  INLINE ScaleAndStart regress(const Vec* q, Vec* determinant) const {
    Vec sum_q = {}, sum_qq = {}, sum_xq = {};
    for (int i = 0; i < kSize; ++i) {
      const Vec by_q = rounded(weight[i] * q[i]);
      sum_q += by_q;
      sum_qq += rounded(by_q * q[i]);
      sum_xq += rounded(by_q * x[i]);
    }
    *determinant = rounded(total * sum_qq) - rounded(sum_q * sum_q);
    const Vec scale = (rounded(total * sum_xq) - rounded(total_x * sum_q)) / *determinant,
              start = (rounded(sum_qq * total_x) - rounded(sum_q * sum_xq)) / *determinant;
    return {start > 0.f ? sum_xq / sum_qq : scale, start > 0.f ? Vec{} : start};
  }
};

// q from 0 to most, and start <= 0. The range of x is mapped to most + first, + 0.1, + 0.2 ... in turn.
template <int kSize>
INLINE ScaleAndStart search_with_start(Vec* q, const Weighted<kSize>& of, int most, float first, int steps) {
  const Vec* const x = of.x;
  Vec least = x[0], greatest = x[0];
  for (int i = 1; i < kSize; ++i) {
    least = x[i] < least ? x[i] : least;
    greatest = x[i] > greatest ? x[i] : greatest;
  }
  least = least > 0.f ? Vec{} : least;
  Vec inverse = set(static_cast<float>(most)) / (greatest - least);
  ScaleAndStart found = {1.f / inverse, least};
  for (int i = 0; i < kSize; ++i) q[i] = nearest_in(rounded(inverse * (x[i] - least)), 0, most);
  Vec error = of.error(q, found);
  for (int step = 0; step <= steps; ++step) {
    Vec tried[kSize], determinant;
    inverse = stretched(first, step, most) / (greatest - found.start);
    for (int i = 0; i < kSize; ++i) tried[i] = nearest_in(rounded(inverse * (x[i] - found.start)), 0, most);
    const ScaleAndStart by = of.regress(tried, &determinant);
    const Vec new_error = of.error(tried, by);
    const Int better = (determinant > 0.f) & (new_error < error);
    found = {better ? by.scale : found.scale, better ? by.start : found.start};
    error = better ? new_error : error;
    for (int i = 0; i < kSize; ++i) q[i] = better ? tried[i] : q[i];
  }
  const Int flat = greatest == least;
  for (int i = 0; i < kSize; ++i) q[i] = flat ? Vec{} : q[i];
  return {flat ? Vec{} : found.scale, flat ? least : found.start};
}

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
