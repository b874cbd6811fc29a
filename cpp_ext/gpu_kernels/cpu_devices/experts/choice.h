// The choice of experts by one work-item: see common/experts/choice.inc, which needs order_best.
#ifndef AIRLLM_CPU_CHOICE_H
#define AIRLLM_CPU_CHOICE_H

#include "../../common/gpu_compat.h"

DEVFN void order_best(LOCAL_PTR const float* p, int count, int used, LOCAL_PTR int* best) {
  int found = 0;
  for (int i = 0; i < count; ++i) {
    if (found == used && !(p[i] > p[best[used - 1]])) continue;
    int place = found < used ? found++ : used - 1;
    for (; place > 0 && p[i] > p[best[place - 1]]; --place) best[place] = best[place - 1];
    best[place] = i;
  }
}

#include "../../common/experts/choice.inc"

#endif
