// Element-wise ops.
#ifndef AIRLLM_ELEMENTS_INL
#define AIRLLM_ELEMENTS_INL
#include "../simd/vectors.inl"
#include "elements.h"

namespace cpu::ISA {
namespace {

struct Silu {
  INLINE Vec operator()(Vec x) const { return times_sigmoid(x, x * kLog2E); }
};

// 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), 2u = 2 sqrt(2/pi) (x + 0.044715 x^3)
struct GeluTanh {
  INLINE Vec operator()(Vec x) const {
    return times_sigmoid(x, x * (1.5957691216f * kLog2E + 0.0713548163f * kLog2E * (x * x)));
  }
};

// x P(x), where P is the CDF of the normal distribution: P(x) = 0.5 (1 + erf(x / sqrt 2)). For y = |x|, P(-y)
// = exp(-y^2 / 2) m(y). m (Mills' ratio over sqrt(2 pi)) is a polynomial in 1 / (1 + 0.26 y), fitted to the
// relative error for y <= 14: 2.5e-8, and 2e-7 with roundings.
struct GeluErf {
  INLINE Vec operator()(Vec x) const {
    const Vec magnitude = (Vec)((Bits)x & 0x7fffffffu);
    const Vec y = magnitude > 15.f ? set(15.f) : magnitude;  // where P(-y) is zero
    const Vec t = 1.f / (1.f + 0.26f * y);
    Vec m = set(3.050478274e-2f);
    m = m * t + -1.528283649e-1f;
    m = m * t + 2.514904153e-1f;
    m = m * t + -1.509480462e-1f;
    m = m * t + 1.609472738e-1f;
    m = m * t + 5.102791024e-2f;
    m = m * t + 1.030301996e-1f;
    m = m * t + 1.030167576e-1f;
    m = m * t + 1.037590594e-1f;
    // The square of y's upper 12 bits is exact. The rest of y^2 is added to the fraction.
    constexpr float kHalf = -0.5f * kLog2E;
    const Vec upper = (Vec)((Bits)y & 0xfffff000u);
    const Vec tail = exp2_of_negative(upper * upper * kHalf, (y - upper) * (y + upper) * kHalf) * (m * t);
    return x * (x < 0.f ? tail : 1.f - tail);
  }
};

template <class F>
struct Times {  // f(a) * b
  INLINE Vec operator()(Vec a, Vec b) const { return F{}(a)*b; }
};

template <class F, class T>
void map_kernel(void* out, const void* x, int64_t n, bool streamed) {
  map(streamed, static_cast<T*>(out), n, F{}, static_cast<const T*>(x));
  if (streamed) end_of_stream();
}

template <class F, class T>
void pair_kernel(void* out, const void* a, const void* b, int64_t n, bool streamed) {
  map(streamed, static_cast<T*>(out), n, Times<F>{}, static_cast<const T*>(a), static_cast<const T*>(b));
  if (streamed) end_of_stream();
}

// Puts the kernels for arrays of T into the table.
template <class T>
constexpr void add_element_kernels(ElementKernels& all, DType dtype) {
  all.silu[dtype] = map_kernel<Silu, T>;
  all.gelu[0][dtype] = map_kernel<GeluTanh, T>;
  all.gelu[1][dtype] = map_kernel<GeluErf, T>;
  all.swiglu[dtype] = pair_kernel<Silu, T>;
  all.geglu[0][dtype] = pair_kernel<GeluTanh, T>;
  all.geglu[1][dtype] = pair_kernel<GeluErf, T>;
}

}  // namespace
}  // namespace cpu::ISA

#endif
