// Multithreaded products with weights (n, k), rows as in checkpoints, in their stored form.
#pragma once
#include "../quantized/dequantized_linear.h"
#include "parallel_gemm.h"

namespace cpu::threaded {

inline int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Packs x as a kernel reads it for weights of a format. Returns false if the packed form cannot hold it.
inline bool pack(const StoredKernels& kernels, const Linear& call, Format format, char* to, float* wide) {
  const int64_t packed = kernels.packed_bytes(format, call.k), row = call.k * itemsize(call.dtype);
  for (int64_t i = 0; i < call.m; ++i) {
    const char* x = call.x + i * row;
    if (call.dtype != kFloat32) {
      kernels.widen(call.dtype, wide, x, call.k);
      x = reinterpret_cast<const char*>(wide);
    }
    if (!kernels.pack(format, to + i * packed, reinterpret_cast<const float*>(x), call.k, nullptr))
      return false;
  }
  return true;
}

// The whole product, with x as pack() has written it for `packed_as`.
inline LinearPart part_of(const StoredKernels& kernels, const Linear& call, Format packed_as,
                          const char* packed) {
  return {call.format,
          call.dtype,
          call.out,
          call.m,
          call.n,
          call.k,
          0,
          call.n,
          call.weight,
          packed,
          kernels.packed_bytes(packed_as, call.k),
          call.bias,
          false};
}

inline void unpacked_rows(const StoredKernels& kernels, const Linear& call, char* packed, float* wide) {
  pack(kernels, call, kF32, packed, wide);
  const Workspace floats(kUnpackedRows * call.k * 4);
  linear_unpacked(kernels, part_of(kernels, call, kF32, packed), reinterpret_cast<float*>(floats.data()));
}

inline void linear_few_rows(const StoredKernels& kernels, const Linear& call);

// Row by row, so that a row which blocks cannot hold does not change the bits of the others.
inline void linear_each_row(const StoredKernels& kernels, const Linear& call) {
  Linear row = call;
  row.m = 1;
  for (int64_t i = 0; i < call.m; ++i) {
    linear_few_rows(kernels, row);
    row.x += call.k * itemsize(call.dtype);
    row.out += call.n * itemsize(call.dtype);
  }
}

// Few rows of x: every weight is read once, as it is stored.
inline void linear_few_rows(const StoredKernels& kernels, const Linear& call) {
  const int64_t room =
      std::max(kernels.packed_bytes(call.format, call.k), kernels.packed_bytes(kF32, call.k));
  const Workspace workspace(call.m * room + align(call.k * 4));
  float* const wide = reinterpret_cast<float*>(workspace.data() + call.m * room);
  if (!pack(kernels, call, call.format, workspace.data(), wide))
    return call.m > 1 ? linear_each_row(kernels, call) : unpacked_rows(kernels, call, workspace.data(), wide);
  const LinearPart all = part_of(kernels, call, call.format, workspace.data());
  share(call.n, call.k * call.m / 4 + 1, 8, [&](int64_t begin, int64_t end) {
    LinearPart part = all;
    part.n0 = begin;
    part.n1 = end;
    kernels.linear(part);
  });
}

inline void add_bias(const StoredKernels& kernels, const Linear& call) {
  if (call.bias) kernels.add_bias(call.dtype, call.out, call.bias, call.m, call.n);
}

inline void linear(const Kernels& kernels, const Linear& call) {
  if (!call.m || !call.n) return;
  if (call.k && call.m <= rows_as_stored(call.format)) return linear_few_rows(kernels.stored, call);
  prefill(kernels, call);
  add_bias(kernels.stored, call);
}

}  // namespace cpu::threaded
