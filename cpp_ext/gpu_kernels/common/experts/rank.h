// The places of numbers in their order.
#ifndef AIRLLM_RANK_H
#define AIRLLM_RANK_H

#include "../gpu_compat.h"

// How many of `count` numbers come before number i, if the largest are first and equal ones keep their order.
DEVFN int rank_of(LOCAL_PTR const float* p, int count, int i) {
  int rank = 0;
  for (int j = 0; j < count; ++j) rank += p[j] > p[i] || (p[j] == p[i] && j < i);
  return rank;
}

#endif
