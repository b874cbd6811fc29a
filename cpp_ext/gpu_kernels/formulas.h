// Formulas; those that are macros hold for float and, in OpenCL, for its vectors.
#ifndef AIRLLM_FORMULAS_H
#define AIRLLM_FORMULAS_H

#include "gpu_compat.h"

#define SILU(x) ((x) / (1.0f + EXP(-(x))))

// x * (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 + exp(-2u)): no
// cancellation for negative x, and the intermediate overflows lead to the limits instead of NaN.
#define GELU(x) ((x) / (1.0f + EXP((x) * (-1.5957691216057308f + -0.07135481627152966f * (x) * (x)))))

// Adds `count` values to a softmax's running maximum `top` and to `sum`, the sum of exp(value - top).
// `top` starts at the lowest finite float instead of -inf: then a row of -inf needs no special case (every
// term is exp(-inf) = 0), and NaN and +inf make the sum NaN by themselves, though FMAX passes over NaN.
DEVFN void softmax_add(const float* v, int count, float* top, float* sum) {
  float peak = *top;
  for (int j = 0; j < count; ++j) peak = FMAX(peak, v[j]);
  float total = *sum * EXP(*top - peak);
  for (int j = 0; j < count; ++j) total += EXP(v[j] - peak);
  *top = peak;
  *sum = total;
}

#endif
