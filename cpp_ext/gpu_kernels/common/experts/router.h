// What the kernels of a router share.
#ifndef AIRLLM_ROUTER_H
#define AIRLLM_ROUTER_H

#include "../dynamic_dtype.h"

// The arguments of norm_route: see gpu/experts/norm_route.inc.
#define NORM_ROUTE                                                                                        \
  GLOBAL const float *x, GLOBAL const float *post, GLOBAL const float *residual, GLOBAL const void *norm, \
      GLOBAL const void *router, GLOBAL const float *bias, GLOBAL const void *gate, GLOBAL float *total,  \
      GLOBAL float *normed, GLOBAL float *logits, U64 rows, U64 dim, U64 experts, U64 norms, float eps,   \
      U32 norm_type, U32 router_type, U32 gate_type

#endif
