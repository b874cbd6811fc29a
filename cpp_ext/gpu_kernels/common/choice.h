// Which experts a token uses. choice.h of a kind of hardware includes this file, and defines order_best:
// it writes the indices of the `used` largest of `count` numbers, largest first; equal ones keep their order.
#ifndef AIRLLM_CHOICE_H
#define AIRLLM_CHOICE_H

#include "dynamic_dtype.h"
#include "rank.h"
#include "reduce.h"

#define MOST_EXPERTS 1024
#define MOST_USED 64
#define MOST_GROUPS 64  // of kernels that do more than to choose

// The sum of the two largest of `count` numbers.
DEVFN float best_two(LOCAL_PTR const float* p, int count) {
  float first = NEGATIVE_INFINITY, second = NEGATIVE_INFINITY;
  for (int j = 0; j < count; ++j) {
    const float v = p[j];
    second = v > first ? first : v > second ? v : second;
    first = v > first ? v : first;
  }
  return first + second;
}

// A logit's part of a softmax whose largest logit is `top`, or its sigmoid.
DEVFN float part_of(U32 sigmoid, float x, float top) {
  return sigmoid ? 1.0f / (1.0f + EXP(-x)) : EXP(x - top);
}

// The indices of the `used` experts with the largest scores, and their weights. Scores are the softmax of the
// logits x, or their sigmoids; a bias changes which are chosen, not their weights. With groups, only the
// experts of the `groups_used` best are chosen; a group is as good as its two best experts. NaN comes last. A
// work-group calls this together; all of its work-items may read the result.
DEVFN void choose_row(GLOBAL const float* x, GLOBAL const float* bias, int count, int used, int groups,
                      int groups_used, U32 sigmoid, U32 normalize, float scale, LOCAL_PTR float* preferred,
                      LOCAL_PTR float* of_groups, LOCAL_PTR int* chosen, LOCAL_PTR float* weights,
                      LOCAL_PTR float* scratch) {
  const int in_group = count / groups;
  float top = -LARGEST_FLOAT, sum = 0.0f, total = 0.0f;
  for (int e = LID; e < count; e += LSIZE) top = FMAX(top, x[e]);
  top = group_max(top, scratch);
  for (int e = LID; e < count; e += LSIZE) {
    preferred[e] = part_of(sigmoid, x[e], top);
    sum += preferred[e];
  }
  sum = group_sum(sum, scratch);
  if (sigmoid) sum = 1.0f;
  for (int e = LID; e < count; e += LSIZE) {
    const float score = preferred[e] / sum, wanted = bias ? score + bias[e] : score;
    preferred[e] = ISNAN(wanted) ? NEGATIVE_INFINITY : wanted;
  }
  BARRIER();
  if (groups > 1) {
    for (int g = LID; g < groups; g += LSIZE) of_groups[g] = best_two(preferred + g * in_group, in_group);
    BARRIER();
    for (int e = LID; e < count; e += LSIZE)
      if (rank_of(of_groups, groups, e / in_group) >= groups_used) preferred[e] = NEGATIVE_INFINITY;
    BARRIER();
  }
  order_best(preferred, count, used, chosen);
  BARRIER();
  for (int i = LID; i < used; i += LSIZE) weights[i] = part_of(sigmoid, x[chosen[i]], top) / sum;
  BARRIER();
  for (int i = 0; i < used; ++i) total += weights[i];
  BARRIER();  // all have read the weights
  for (int i = LID; i < used; i += LSIZE) weights[i] = (normalize ? weights[i] / total : weights[i]) * scale;
  BARRIER();
}

#endif
