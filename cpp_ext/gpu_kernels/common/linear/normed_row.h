// The arguments of normed_row: a row that each work-group computes for itself, in `to`, memory of its own. It
// is the sum (x by the norm `post` * factor + residual) * scale[0], or with `norm` the norm of that; what is
// null is left out. The first group also writes the sum to `total`, and its norm to `normed`. Without `to`,
// nothing is done. So a product needs no launch before it for its input.
#ifndef AIRLLM_NORMED_ROW_H
#define AIRLLM_NORMED_ROW_H

#include "../reduce.h"

#define NORMED_ROW                                                                                          \
  GLOBAL const float *x, GLOBAL const float *post, GLOBAL const float *residual, GLOBAL const float *scale, \
      GLOBAL const float *norm, GLOBAL float *total, GLOBAL float *normed, GLOBAL float *to, U64 k,         \
      float eps, float factor, LOCAL_PTR float *scratch

#endif
