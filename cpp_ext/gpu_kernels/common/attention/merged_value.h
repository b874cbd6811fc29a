// The parts that attention_row computes of a query: the top of its scores, their sum, and e columns each.
#ifndef AIRLLM_MERGED_VALUE_H
#define AIRLLM_MERGED_VALUE_H

#include "../gpu_compat.h"

// Column i of the result that they are parts of.
DEVFN float merged_value(GLOBAL const float* parts, U64 splits, U64 e, U64 i) {
  float top = -LARGEST_FLOAT, sum = 0.0f, column = 0.0f;
  for (U64 n = 0; n < splits; ++n) top = FMAX(top, parts[n * (e + 2)]);
  for (U64 n = 0; n < splits; ++n) {
    GLOBAL const float* part = parts + n * (e + 2);
    const float kept = EXP(part[0] - top);
    sum = FMA(part[1], kept, sum);
    column = FMA(part[2 + i], kept, column);
  }
  return sum == 0.0f ? 0.0f : column / sum;
}

#endif
