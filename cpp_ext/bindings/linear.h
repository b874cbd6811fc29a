// Products with weights (n, k), rows as checkpoints have them, in the form in which they are stored.
#pragma once
#include "../cpu/unpacked.h"
#include "formats.h"
#include "prefill.h"

namespace [[gnu::visibility("hidden")]] ops {

// out (m, n) = x (m, k) @ weight (n, k)^T + bias, dense.
struct LinearCall {
  DType dtype;  // of x and out
  char* out;
  const char* x;
  const Stored& weight;
  const float* bias;  // or null
  int64_t m, n, k;
};

inline int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// x as a kernel reads it beside weights of a format. False if it holds what that cannot.
inline bool pack(const LinearCall& call, cpu::Format format, char* to, float* wide) {
  const cpu::StoredKernels& kernels = active.load()->stored;
  const int64_t packed = kernels.packed_bytes(format, call.k), row = call.k * itemsize(call.dtype);
  for (int64_t i = 0; i < call.m; ++i) {
    const char* x = call.x + i * row;
    if (call.dtype != cpu::kFloat32) {
      kernels.widen(call.dtype, wide, x, call.k);
      x = reinterpret_cast<const char*>(wide);
    }
    if (!kernels.pack(format, to + i * packed, reinterpret_cast<const float*>(x), call.k)) return false;
  }
  return true;
}

// All of it, with x as pack() has written it for `packed_as`.
inline cpu::LinearPart part_of(const LinearCall& call, cpu::Format packed_as, const char* packed) {
  return {call.weight.format,
          call.dtype,
          call.out,
          call.m,
          call.n,
          call.k,
          0,
          call.n,
          call.weight.data(),
          packed,
          active.load()->stored.packed_bytes(packed_as, call.k),
          call.bias};
}

inline void unpacked_rows(const LinearCall& call, char* packed, float* wide) {
  pack(call, cpu::kF32, packed, wide);
  calls.fetch_add(1, std::memory_order_relaxed);
  const results::Workspace floats(cpu::kUnpackedRows * call.k * 4);
  cpu::linear_unpacked(active.load()->stored, part_of(call, cpu::kF32, packed),
                       reinterpret_cast<float*>(floats.data()));
}

// Up to eight rows of x: every weight is read once, as it is stored.
inline void few_rows(const LinearCall& call) {
  const cpu::StoredKernels& kernels = active.load()->stored;
  const cpu::Format format = call.weight.format;
  const int64_t room =
      std::max(kernels.packed_bytes(format, call.k), kernels.packed_bytes(cpu::kF32, call.k));
  const results::Workspace workspace(call.m * room + aligned(call.k * 4));
  float* const wide = reinterpret_cast<float*>(workspace.data() + call.m * room);
  if (!pack(call, format, workspace.data(), wide)) return unpacked_rows(call, workspace.data(), wide);
  const cpu::LinearPart all = part_of(call, format, workspace.data());
  run(call.n, call.k * call.m / 4 + 1, 8, [&](int64_t begin, int64_t end) {
    cpu::LinearPart part = all;
    part.n0 = begin;
    part.n1 = end;
    kernels.linear(part);
  });
}

// x (..., k) with weight (n, k), whose ranks and k the caller has checked.
inline void multiply_stored(const Array& out, const Array& x, const Stored& weight, const float* bias) {
  if (!out.size) return;
  const int64_t n = weight.axis(2), k = weight.axis(1);
  const LinearCall call{x.dtype, out.data, x.data, weight, bias, out.size / n, n, k};
  if (k && call.m <= cpu::kDecodeRows) return few_rows(call);
  prefill(weight.format, out, x, weight.data(), call.m, n, k);
  if (bias) active.load()->stored.add_bias(x.dtype, out.data, bias, call.m, n);
}

inline std::vector<float> bias_of(const Op& op, PyObject* object, int64_t n, Array* bias) {
  if (!present(object)) return {};
  *bias = array(op, "bias", object);
  if (bias->ndim != 1 || bias->size != n) op.wrong_shape("bias", *bias, "(n) with n=" + std::to_string(n));
  std::vector<float> wide(n);
  active.load()->stored.widen(bias->dtype, wide.data(), bias->data, n);
  return wide;
}

inline PyObject* linear(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"x", "weight", "bias", "out"};
  PyObject* values[4];
  place(op, values, names, 3, 2, args, given, keywords);
  const Array x = array(op, "x", values[0]);
  const Stored weight = stored(op, "weight", values[1]);
  if (x.ndim < 1) op.wrong_shape("x", x, "(... k)");
  const int64_t k = x.axis(1);
  if (weight.ndim != 2 || weight.axis(1) != k)
    op.wrong_value("weight", "has shape " + weight.shape_text(), "(n k) with k=" + std::to_string(k));
  Array bias;
  const std::vector<float> wide_bias = bias_of(op, values[2], weight.axis(2), &bias);
  std::vector<py::ssize_t> shape(x.shape, x.shape + x.ndim);
  shape.back() = weight.axis(2);
  results::Result out = results::result(
      op, values[3], x, x.ndim, shape.data(),
      {{"x", &x, false}, {"weight", &weight.array, false}, {"bias", bias.object ? &bias : &x, false}});
  multiply_stored(out, x, weight, wide_bias.empty() ? nullptr : wide_bias.data());
  return out.give();
}

inline PyObject* matmul_vec(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  static const char* const names[] = {"w", "x", "out"};
  PyObject* values[3];
  place(op, values, names, 2, 2, args, given, keywords);
  const Stored w = stored(op, "w", values[0]);
  const Array x = array(op, "x", values[1]);
  if (w.ndim != 2) op.wrong_value("w", "has shape " + w.shape_text(), "(n k)");
  if (x.ndim != 1 || x.size != w.axis(1)) op.wrong_shape("x", x, "(k) with k=" + std::to_string(w.axis(1)));
  const py::ssize_t n = w.axis(2);
  results::Result out = results::result(op, values[2], x, 1, &n, {{"w", &w.array, false}, {"x", &x, false}});
  multiply_stored(out, x, w, nullptr);
  return out.give();
}

}  // namespace ops
