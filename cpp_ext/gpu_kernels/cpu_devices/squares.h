// The sum of the squares of a row.
#ifndef AIRLLM_SQUARES_H
#define AIRLLM_SQUARES_H

#include "packs.h"

DEVFN float squares_of(GLOBAL const float* x, U64 dim) {
  float8 squares8 = 0.0f;
  U64 i = 0;
  for (; i + 8 <= dim; i += 8) squares8 = FMA(vload8(0, x + i), vload8(0, x + i), squares8);
  float squares = sum8(squares8);
  for (; i < dim; ++i) squares = FMA(x[i], x[i], squares);
  return squares;
}

#endif
