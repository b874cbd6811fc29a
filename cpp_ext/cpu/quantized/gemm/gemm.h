// Products of many rows with weights as stored: out (m, n) = x (m, k) @ weight (n, k)^T.
#pragma once
#include <cstdint>

#include "../../dtypes.h"
#include "../formats.h"

namespace cpu {

// All of x by rows [n0, n1) of a weight; `workspace_bytes` gives the size of `workspace`.
struct PrefillPart {
  int64_t m, n, k, n0, n1;
  bool interleaved = false;  // the weight: `product` takes both
};

struct PrefillKernels {
  int rows, columns;  // of the tile that the innermost kernel keeps in registers

  // Dot products of bytes, if the set has instructions for them. Each `rows` rows of x become a strip: int8
  // codes with a scale for every 32, in the order in which `product` reads them.
  bool (*by_bytes)(Format);
  int64_t (*strip_bytes)(Format, int64_t k);
  void (*quantize[kDTypes])(Format, char* strips, const void* x, int64_t m, int64_t k, int64_t strip0,
                            int64_t strip1);
  void (*product)(Format, void* out, DType, const char* strips, const char* weight, const PrefillPart&,
                  char* workspace);
  int64_t (*workspace_bytes)(Format, int64_t k);

  // Float32, for any format: panels of the weight are unpacked to float32.
  void (*float_product[kDTypes])(Format, void* out, const void* x, const char* weight, const PrefillPart&,
                                 float* workspace);
};

}  // namespace cpu
