// Multithreaded products with weights (n, k), rows as in checkpoints, in their stored form.
#pragma once
#include <atomic>

#include "../quantized/dequantized_linear.h"
#include "parallel_gemm.h"

namespace cpu::threaded {

inline int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// How x is packed: for weights of a format and a layout.
struct PackedAs {
  Format format;
  bool interleaved;

  int64_t bytes(const StoredKernels& kernels, int64_t k) const {
    return kernels.products(interleaved).packed_bytes(format, k);
  }
};

// Packs x as a kernel reads it. Returns false if the packed form cannot hold it. `wide` has room for a row.
inline bool pack_row(const StoredKernels& kernels, const Linear& call, PackedAs as, char* to, float* wide,
                     int64_t i) {
  const char* x = call.x + i * call.k * itemsize(call.dtype);
  if (call.dtype != kFloat32) {
    kernels.widen(call.dtype, wide, x, call.k);
    x = reinterpret_cast<const char*>(wide);
  }
  return kernels.products(as.interleaved)
      .pack(as.format, to + i * as.bytes(kernels, call.k), reinterpret_cast<const float*>(x), call.k,
            nullptr);
}
inline bool pack(const StoredKernels& kernels, const Linear& call, PackedAs as, char* to, float* wide) {
  constexpr int64_t kFew = 8;
  if (call.m <= kFew || call.dtype != kFloat32) {  // the threads would need a `wide` each
    for (int64_t i = 0; i < call.m; ++i)
      if (!pack_row(kernels, call, as, to, wide, i)) return false;
    return true;
  }
  std::atomic<bool> held{true};
  share(call.m, call.k, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end && held; ++i)
      if (!pack_row(kernels, call, as, to, nullptr, i)) held = false;
  });
  return held;
}

// The whole product, with x as pack() has written it for `packed_as`.
inline LinearPart part_of(const StoredKernels& kernels, const Linear& call, PackedAs packed_as,
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
          packed_as.bytes(kernels, call.k),
          call.bias,
          false,
          call.interleaved};
}

inline void unpacked_rows(const StoredKernels& kernels, const Linear& call, char* packed, float* wide) {
  constexpr PackedAs kFloats{kF32, false};
  pack(kernels, call, kFloats, packed, wide);
  const Workspace floats(kUnpackedRows * call.k * 4);
  linear_unpacked(kernels, part_of(kernels, call, kFloats, packed), reinterpret_cast<float*>(floats.data()));
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

// Weights are read as they are stored, or interleaved.
inline void linear_few_rows(const StoredKernels& kernels, const Linear& call) {
  const PackedAs as{call.format, call.interleaved};
  const int64_t room = std::max(as.bytes(kernels, call.k), PackedAs{kF32, false}.bytes(kernels, call.k));
  const Workspace workspace(call.m * room + align(call.k * 4));
  float* const wide = reinterpret_cast<float*>(workspace.data() + call.m * room);
  if (!pack(kernels, call, as, workspace.data(), wide))
    return call.m > 1 ? linear_each_row(kernels, call) : unpacked_rows(kernels, call, workspace.data(), wide);
  const LinearPart all = part_of(kernels, call, as, workspace.data());
  share(call.n, call.k * call.m / 4 + 1, call.interleaved ? kBand : 8, [&](int64_t begin, int64_t end) {
    LinearPart part = all;
    part.n0 = begin;
    part.n1 = end;
    kernels.products(part.interleaved).linear(part);
  });
}

inline void add_bias(const StoredKernels& kernels, const Linear& call) {
  if (call.bias) kernels.add_bias(call.dtype, call.out, call.bias, call.m, call.n);
}

// `many`: by the kernels for many rows, however few there are.
inline void linear(const Kernels& kernels, const Linear& call, bool many = false) {
  if (!call.m || !call.n) return;
  const bool needs_floats = !kernels.prefill.by_bytes(call.format);
  const bool few = many ? takes_any_rows(call.format) : call.m <= rows_as_stored(call.format);
  if (call.k && (few || (call.interleaved && needs_floats))) return linear_few_rows(kernels.stored, call);
  prefill(kernels, call);
  add_bias(kernels.stored, call);
}

}  // namespace cpu::threaded
