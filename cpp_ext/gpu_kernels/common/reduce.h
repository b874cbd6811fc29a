// Reductions over a work-group; every work-item gets the result.
#ifndef AIRLLM_REDUCE_H
#define AIRLLM_REDUCE_H

#include "gpu_compat.h"

#define PLUS(a, b) ((a) + (b))

#if defined(ONE_WORK_ITEM)

#define GROUP_SCRATCH 1
#define GROUP_REDUCTION(name, OP) \
  DEVFN float name(float v, LOCAL_PTR float* scratch) { return v; }

#elif defined(SHUFFLE_XOR)

// One value per warp; LSIZE is a multiple of LANES.
#define GROUP_SCRATCH 32
#define GROUP_REDUCTION(name, OP)                                                    \
  DEVFN float name(float v, LOCAL_PTR float* scratch) {                              \
    for (int lane = LANES / 2; lane > 0; lane /= 2) v = OP(v, SHUFFLE_XOR(v, lane)); \
    if (LSIZE == LANES) return v;                                                    \
    if (LID % LANES == 0) scratch[LID / LANES] = v;                                  \
    BARRIER();                                                                       \
    v = scratch[0];                                                                  \
    for (int warp = 1; warp < LSIZE / LANES; ++warp) v = OP(v, scratch[warp]);       \
    BARRIER(); /* the next reduction writes scratch again */                         \
    return v;                                                                        \
  }

#else

// A tree in local memory; LSIZE is a power of two, at most 256.
#define GROUP_SCRATCH 256
#define GROUP_REDUCTION(name, OP)                                                     \
  DEVFN float name(float v, LOCAL_PTR float* scratch) {                               \
    scratch[LID] = v;                                                                 \
    BARRIER();                                                                        \
    for (int half_size = LSIZE / 2; half_size > 0; half_size /= 2) {                  \
      if (LID < half_size) scratch[LID] = OP(scratch[LID], scratch[LID + half_size]); \
      BARRIER();                                                                      \
    }                                                                                 \
    v = scratch[0];                                                                   \
    BARRIER();                                                                        \
    return v;                                                                         \
  }

#endif

GROUP_REDUCTION(group_sum, PLUS)
GROUP_REDUCTION(group_max, FMAX)

#endif
