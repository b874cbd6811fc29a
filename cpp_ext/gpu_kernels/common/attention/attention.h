// What all attention kernels share: their parameters, the keys that a query sees, and its scores.
#ifndef AIRLLM_ATTENTION_H
#define AIRLLM_ATTENTION_H

#include "../dynamic_dtype.h"

// q: batch x heads x t x d, k: batch x groups x s x d, v: batch x groups x s x e, mask: batch x heads x t x
// s, with strides in elements along all axes but the last. batch is two axes, the inner of size `inner`, with
// the strides _b and _c. Query head i uses the keys of group i / (heads / groups). out is contiguous and has
// q's type. sinks: one for each query head. softcap and window are 0 if absent.
#define ATTENTION                                                                                        \
  U64 batch, U64 inner, U64 heads, U64 groups, U64 t, U64 s, U64 d, U64 e, U64 q_b, U64 q_c, U64 q_h,    \
      U64 q_t, U64 k_b, U64 k_c, U64 k_h, U64 k_s, U64 v_b, U64 v_c, U64 v_h, U64 v_s, U64 m_b, U64 m_c, \
      U64 m_h, U64 m_t, float scale, float softcap, U64 window, U32 causal, U32 q_type, U32 mask_type,   \
      U32 sinks_type

// Of queries that are sums of parts, the longest.
#define LONGEST_SUM 1024

// Element i of a query that is the sum of rows that are `apart` from each other.
DEVFN float sum_of_parts(GLOBAL const void* q, U32 type, U64 i, U64 parts, U64 apart) {
  float sum = 0.0f;
  for (U64 part = 0; part < parts; ++part) sum += load_any(q, type, i + part * apart);
  return sum;
}

// Query i of t is at the position of key i + s - t. With causal it sees no later key; with a window it sees
// the last `window` keys up to its position. It sees [first_key, end_key).
DEVFN U64 first_key(U64 i, U64 t, U64 s, U64 window) {
  const I64 first = (I64)(i + s - t - window) + 1;
  return window != 0 && first > 0 ? (U64)first : 0;
}
DEVFN U64 end_key(U64 i, U64 t, U64 s, U32 causal) {
  const I64 end = (I64)(i + s - t) + 1;
  return !causal ? s : end > 0 ? (U64)end : 0;
}

DEVFN float capped(float score, float softcap) {
  return softcap == 0.0f ? score : softcap * TANH(score / softcap);
}

// A head's sink: one more score for each of its queries, without a value; -inf if there are no sinks.
// Streamed softmax starts with it: the maximum is first_top(), and the sum is first_sum(), which is 1, or 0
// without sinks.
DEVFN float sink_of(GLOBAL const void* sinks, U32 type, U64 head) {
  return type == TYPE_NONE ? NEGATIVE_INFINITY : load_any(sinks, type, head);
}
DEVFN float first_top(float sink) { return FMAX(sink, -LARGEST_FLOAT); }
DEVFN float first_sum(float sink) { return EXP(sink - first_top(sink)); }

#endif
