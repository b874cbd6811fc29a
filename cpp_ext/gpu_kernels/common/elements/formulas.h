// Formulas. The macros work on float and, in OpenCL, on its vectors.
#ifndef AIRLLM_FORMULAS_H
#define AIRLLM_FORMULAS_H

#include "../gpu_compat.h"

#define SILU(x) ((x) / (1.0f + EXP(-(x))))

// x * (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 + exp(-2u)): no
// cancellation for negative x, and overflows of intermediate values give the limits instead of NaN.
#define GELU(x) ((x) / (1.0f + EXP((x) * (-1.5957691216057308f + -0.07135481627152966f * (x) * (x)))))

// x / 2 * erfc(-x / sqrt 2), with a relative error of a few 1e-7 in the tail too, where 1 + erf cancels. With
// z = |x| / sqrt 2, erfc(z) = exp(-z^2) * erfcx(z), and erfcx is a polynomial in t = 1 / (1 + 0.4 z), fitted
// to 1e-8 for z in [0, 11]. x^2 / 2 is split in two parts, since exp turns an absolute error into a relative
// one.
#define GELU_ERF_FUNCTION(name, V)                                                    \
  DEVFN V name(V x) {                                                                 \
    const V size = FMIN(FABS(x), (V)15.0f); /* erfc is 0 in float32 from 14.3 on */   \
    const V t = 1.0f / (1.0f + 0.28284271f * size), half_square = 0.5f * size * size; \
    const V rest = FMA(0.5f * size, size, -half_square);                              \
    V p = (V) - 0.02772447094f;                                                       \
    p = FMA(p, t, (V)0.1879071295f);                                                  \
    p = FMA(p, t, (V) - 0.4751781225f);                                               \
    p = FMA(p, t, (V)0.5161172748f);                                                  \
    p = FMA(p, t, (V) - 0.2585077882f);                                               \
    p = FMA(p, t, (V)0.2583016455f);                                                  \
    p = FMA(p, t, (V)0.1343924999f);                                                  \
    p = FMA(p, t, (V)0.2139202505f);                                                  \
    p = FMA(p, t, (V)0.2250707299f);                                                  \
    p = FMA(p, t, (V)0.2257008851f);                                                  \
    const V tail = p * t * EXP(-half_square) * (1.0f - rest);                         \
    return 0.5f * x * (x < 0.0f ? tail : 2.0f - tail);                                \
  }
GELU_ERF_FUNCTION(gelu_erf, float)

// What a gate lets through: activation(gate) * up. Activations: 1 silu, 2 gelu by tanh, 3 gelu by erf, 4 the
// clamped one of GPT-OSS, gate * sigmoid(alpha * gate) * (up + 1), 5 the square of what is positive. NaN
// stays.
DEVFN float gated_value(U32 activation, float gate, float up, float limit, float alpha) {
  if (activation == 4) {
    const float v = gate > limit ? limit : gate, w = up > limit ? limit : up < -limit ? -limit : up;
    return v / (1.0f + EXP(-alpha * v)) * (w + 1.0f);
  }
  if (activation == 5) return (gate < 0.0f ? 0.0f : gate * gate) * up;
  return (activation == 1 ? SILU(gate) : activation == 2 ? GELU(gate) : gelu_erf(gate)) * up;
}

// Adds `count` values to a softmax's running maximum `top` and to `sum`, the sum of exp(value - top). `top`
// starts at the lowest finite float instead of -inf. Then a row of -inf needs no special case (every term is
// exp(-inf) = 0), and NaN and +inf make the sum NaN, though FMAX ignores NaN.
DEVFN void softmax_add(const float* v, int count, float* top, float* sum) {
  float peak = *top;
  for (int j = 0; j < count; ++j) peak = FMAX(peak, v[j]);
  float total = *sum * EXP(*top - peak);
  for (int j = 0; j < count; ++j) total += EXP(v[j] - peak);
  *top = peak;
  *sum = total;
}

#endif
