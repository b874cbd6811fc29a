// The CPU kernels, written once. targets.h includes this file once per instruction set, with
//   ISA    the namespace and name of the set
//   LANES, VECTORS  how many floats its vectors hold, and how many such registers it has
// and, where the set has instructions for them, WIDEN_F16/NARROW_F16, STREAM_F32/STREAM_16 and
// GUESS_RECIPROCAL/TIMES_2_TO_THE, inside a region that lets the compiler use that set. Include nothing else
// from here: a header's inline functions would be compiled for the wrong CPU.

namespace cpu {
namespace ISA {
namespace {

#include "vectors.inl"

struct Silu {
  INLINE Vec operator()(Vec x) const { return times_sigmoid(x, x * kLog2E); }
};

// 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), 2u = 2 sqrt(2/pi) (x + 0.044715 x^3)
struct Gelu {
  INLINE Vec operator()(Vec x) const {
    return times_sigmoid(x, x * (1.5957691216f * kLog2E + 0.0713548163f * kLog2E * (x * x)));
  }
};

struct Normed {  // x * scale * weight
  float scale;
  INLINE Vec operator()(Vec x, Vec weight) const { return x * scale * weight; }
};

struct ExpFrom {  // exp(x - top)
  float top;
  INLINE Vec operator()(Vec x) const { return exp2_of_negative((x - top) * kLog2E); }
};

struct ExpScaled {
  float top, scale;
  INLINE Vec operator()(Vec x) const { return ExpFrom{top}(x)*scale; }
};

struct Scaled {
  float scale;
  INLINE Vec operator()(Vec x) const { return x * scale; }
};

template <class F, class T>
void map_kernel(void* out, const void* x, int64_t n, bool streamed) {
  map(streamed, static_cast<T*>(out), n, F{}, static_cast<const T*>(x));
  if (streamed) end_of_stream();
}

template <class T, class W>
void rms_norm(void* out_, const void* x_, const void* weight_, int64_t rows, int64_t dim, float eps,
              bool streamed) {
  T* out = static_cast<T*>(out_);
  const T* x = static_cast<const T*>(x_);
  const W* weight = static_cast<const W*>(weight_);
  for (; rows--; x += dim, out += dim) {
    const float sum = reduce(0.f, dim, Plus{}, Square{}, x);
    map(streamed, out, dim, Normed{1.f / __builtin_sqrtf(sum / dim + eps)}, Ahead<T>{x, dim}, weight);
  }
  if (streamed) end_of_stream();
}

// Exponentials wait in float32, in the first-level cache, for their sum. A row that is too long for
// that computes them twice.
template <class T>
void softmax(void* out_, const void* x_, int64_t rows, int64_t dim, bool streamed) {
  constexpr int64_t kWaiting = 8192;
  alignas(64) float waiting[kWaiting];
  T* out = static_cast<T*>(out_);
  const T* x = static_cast<const T*>(x_);
  const float lowest = -__builtin_inff();
  for (; rows--; x += dim, out += dim) {
    const float max = reduce(lowest, dim, Max{}, Same{}, x);
    const float top = max == lowest ? 0.f : max;  // nothing but -inf: every exponential is zero
    float sum;
    if (dim <= kWaiting)
      sum = map_and_sum(waiting, dim, ExpFrom{top}, Ahead<T>{x, dim});
    else
      sum = reduce(0.f, dim, Plus{}, ExpFrom{top}, x);
    const float scale = sum == 0.f ? 0.f : 1.f / sum;
    if (dim <= kWaiting)
      map(streamed, out, dim, Scaled{scale}, waiting);
    else
      map(streamed, out, dim, ExpScaled{top, scale}, x);
  }
  if (streamed) end_of_stream();
}

// clang-format off: each needs those before it
#include "transpose.inl"
#include "matmul.inl"
#include "codes.inl"
#include "prefill.inl"
#include "prefill_floats.inl"
#include "attention.inl"
// clang-format on

float read_all(const void* x, int64_t n) {
  return reduce(0.f, n, Plus{}, Same{}, static_cast<const float*>(x));
}

}  // namespace

constexpr Kernels kernels = {
    STRING(ISA),
    LANES,
    {map_kernel<Silu, float>, map_kernel<Silu, Float16>, map_kernel<Silu, BFloat16>},
    {map_kernel<Gelu, float>, map_kernel<Gelu, Float16>, map_kernel<Gelu, BFloat16>},
    {softmax<float>, softmax<Float16>, softmax<BFloat16>},
    {{rms_norm<float, float>, rms_norm<float, float>},
     {rms_norm<Float16, Float16>, rms_norm<Float16, float>},
     {rms_norm<BFloat16, BFloat16>, rms_norm<BFloat16, float>}},
    {matvec<float>, matvec<Float16>, matvec<BFloat16>},
    {matmul<float>, matmul<Float16>, matmul<BFloat16>},
    kMatvecWorkspace,
    kMatmulWorkspace,
    with_bytes(by_floats()),
    map_kernel<Same, float>,
    read_all,
    attention_kernels,
};

}  // namespace ISA
}  // namespace cpu

#include "end_of_target.inl"
