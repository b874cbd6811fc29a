// Products of a row with SLICE rows of a matrix, which a work-group of at most MOST_ITEMS computes at once:
// each work-item leaves its part of number j in `sums`, where the others' are beside it.
#ifndef AIRLLM_SLICE_SUMS_H
#define AIRLLM_SLICE_SUMS_H

#include "../gpu_compat.h"

#define SLICE 32
#define MOST_ITEMS 64
#define SLICE_SUMS (SLICE * MOST_ITEMS)

DEVFN void put_part(LOCAL_PTR float* sums, int j, float v) { sums[j * LSIZE + LID] = v; }
DEVFN float sum_of(LOCAL_PTR const float* sums, int j) {
  float sum = 0.0f;
  for (int n = 0; n < LSIZE; ++n) sum += sums[j * LSIZE + n];
  return sum;
}

#endif
