// Elements of a token's heads, normalized and rotated.
#ifndef AIRLLM_HEADS_H
#define AIRLLM_HEADS_H

#include "../gpu_compat.h"

// Element i of a row, scaled, and multiplied by a norm's weight if there is one.
DEVFN float normed(GLOBAL const float* x, GLOBAL const float* weight, float scale, U64 i) {
  return weight ? x[i] * scale * weight[i] : x[i];
}

// Element i of such a row whose first 2 r elements are rotated in pairs: see gpu/rows/apply_rope.inc.
DEVFN float rotated(GLOBAL const float* x, GLOBAL const float* weight, float scale, GLOBAL const float* cos,
                    GLOBAL const float* sin, U64 r, U32 interleaved, U64 i) {
  const float v = normed(x, weight, scale, i);
  if (i >= 2 * r) return v;
  const U64 pair = interleaved ? i / 2 : i % r, apart = interleaved ? 1 : r;
  const int first = interleaved ? i % 2 == 0 : i < r;
  const float w = normed(x, weight, scale, first ? i + apart : i - apart);
  return first ? v * cos[pair] - w * sin[pair] : v * cos[pair] + w * sin[pair];
}

// Element i of a head, normalized if there are weights, and rotated: with `late`, rotated before.
DEVFN float placed(GLOBAL const float* x, GLOBAL const float* weight, float scale, U32 late,
                   GLOBAL const float* cos, GLOBAL const float* sin, U64 r, U32 interleaved, U64 i) {
  if (!weight || !late) return rotated(x, weight, scale, cos, sin, r, interleaved, i);
  return rotated(x, 0, 1.0f, cos, sin, r, interleaved, i) * scale * weight[i];
}

#endif
