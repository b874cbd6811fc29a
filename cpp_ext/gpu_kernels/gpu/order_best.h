// The choice of the largest numbers by a work-group: see common/choice.h.
#ifndef AIRLLM_ORDER_BEST_H
#define AIRLLM_ORDER_BEST_H

#include "../common/rank.h"

DEVFN void order_best(LOCAL_PTR const float* p, int count, int used, LOCAL_PTR int* best) {
  for (int i = LID; i < count; i += LSIZE) {
    const int rank = rank_of(p, count, i);
    if (rank < used) best[rank] = i;
  }
}

#endif
