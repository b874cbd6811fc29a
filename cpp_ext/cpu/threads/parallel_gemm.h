// Multithreaded products of many rows with a weight as stored: quantized/gemm/gemm.h.
#pragma once
#include <cstring>

#include "../kernels.h"
#include "buffer_pool.h"
#include "parallel.h"

namespace cpu::threaded {

// out (m, n) = x (m, k) @ weight (n, k)^T + bias, dense; out has the dtype of x.
struct Linear {
  DType dtype;
  char* out;
  const char* x;
  Format format;
  const char* weight;
  const float* bias;  // or null
  int64_t m, n, k;
  bool interleaved = false;  // the weight

  int64_t work() const { return n * (k * m / 4 + 1); }  // in elements of an elementwise op
};

// Quantizes all rows of x to int8, then multiplies by rows of the weight.
inline void prefill_by_bytes(const PrefillKernels& kernels, const Linear& call) {
  const int64_t strips = (call.m + kernels.rows - 1) / kernels.rows, step = kernels.columns;
  const int team = parts(call.n, call.m * call.k / 16 + 1, step);
  const int64_t each = (kernels.workspace_bytes(call.format, call.k) + 63) / 64 * 64;
  const Workspace workspace(each * team + strips * kernels.strip_bytes(call.format, call.k));
  char* const rows = workspace.data() + each * team;
  parallel(strips, 1, parts(strips, call.k * kernels.rows, 1), [&](int64_t begin, int64_t end) {
    kernels.quantize[call.dtype](call.format, rows, call.x, call.m, call.k, begin, end);
  });
  parallel(call.n, step, team, pieces(team, call.work()),
           [&](int64_t begin, int64_t end, int64_t, int thread) {
             kernels.product(call.format, call.out, call.dtype, rows, call.weight,
                             {call.m, call.n, call.k, begin, end, call.interleaved},
                             workspace.data() + thread * each);
           });
}

inline void prefill_by_floats(const Kernels& kernels, const Linear& call) {
  const int64_t step = 32;
  const int team = parts(call.n, call.m * call.k / 4 + 1, step);
  const Workspace workspaces(kernels.matmul_workspace * team);
  std::atomic<int64_t> next{0};
  parallel(call.n, step, team, [&](int64_t begin, int64_t end) {
    kernels.prefill.float_product[call.dtype](
        call.format, call.out, call.x, call.weight, {call.m, call.n, call.k, begin, end},
        reinterpret_cast<float*>(workspaces.data() + next++ * kernels.matmul_workspace));
  });
}

// Without bias.
inline void prefill(const Kernels& kernels, const Linear& call) {
  if (!call.m || !call.n) return;
  if (!call.k) return void(std::memset(call.out, 0, call.m * call.n * itemsize(call.dtype)));
  kernels.prefill.by_bytes(call.format) ? prefill_by_bytes(kernels.prefill, call)
                                        : prefill_by_floats(kernels, call);
}

}  // namespace cpu::threaded
