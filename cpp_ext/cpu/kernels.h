// The kernels of a CPU instruction set. targets/kernels.inl implements them once per instruction set;
// targets/isa.h finds which sets this CPU supports.
// Kernels take raw pointers to dense arrays, run on the calling thread, and do not depend on Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "dtypes.h"
#include "ops/attention.h"
#include "ops/elements.h"
#include "ops/rows.h"
#include "quantized/gemm/gemm.h"
#include "quantized/gemv/gemv.h"

namespace cpu {

// Rows [m0, m1) and columns [n0, n1) of out (m, n) = a (m, k) @ b (k, n). The table gives the workspace size.
struct MatmulPart {
  int64_t n, k, m0, m1, n0, n1;
};
// Sums over [k0, k1) of columns [n0, n1) of such a product: totals (m, n1 - n0), for up to eight rows.
struct FewRowsPart {
  int64_t m, n, k, n0, n1, k0, k1;
};
using FewRowsKernel = void(float* totals, const void* a, const void* b, const FewRowsPart& part);
using MatmulKernel = void(void* out, const void* a, const void* b, const MatmulPart& part, float* workspace);

struct Kernels {
  const char* isa;
  int lanes;  // floats in a vector
  ElementKernels elements;
  RowKernels rows;
  // Indexed by the DType of the first array.
  FewRowsKernel* few_rows[kDTypes];  // up to eight rows of a: b is read as stored
  void (*sum_parts[kDTypes])(void* out, float* totals, int64_t parts, int64_t n);
  MatmulKernel* matmul[kDTypes];  // many rows: b is unpacked into cache and reused
  size_t matmul_workspace;        // bytes, 64-byte aligned
  PrefillKernels prefill;
  // These measure the memory bandwidth that a kernel can reach.
  MapKernel* copy;
  float (*read)(const void* x, int64_t n);
  AttentionKernels attention;
  StoredKernels stored;
};

}  // namespace cpu
