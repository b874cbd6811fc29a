// The choice of experts by a work-group: see common/experts/choice.inc, which needs order_best.
#ifndef AIRLLM_GPU_CHOICE_H
#define AIRLLM_GPU_CHOICE_H

#include "../../common/experts/rank.h"

DEVFN void order_best(LOCAL_PTR const float* p, int count, int used, LOCAL_PTR int* best) {
  for (int i = LID; i < count; i += LSIZE) {
    const int rank = rank_of(p, count, i);
    if (rank < used) best[rank] = i;
  }
}

#include "../../common/experts/choice.inc"

#endif
