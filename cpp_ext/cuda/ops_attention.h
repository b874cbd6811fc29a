// Attention.
#pragma once

#include <array>
#include <cmath>

#include "batches.h"
#include "broadcast.h"
#include "ops.h"

namespace airllm::cuda {

// q, k, v and mask, and their strides along the leading axes and the two that follow.
using FourArrays = std::array<const Operand*, 4>;
using FourStrides = std::array<Shape, 4>;

inline const char* moved(const Operand& x, int64_t elements) {
  return x ? static_cast<const char*>(x.at) + elements * int64_t(size_of(x.dtype)) : nullptr;
}

inline AttentionStrides strides_of(const Batches<4>& batches, const Shape& strides, size_t array) {
  return {batches.strides(1)[array], batches.strides(0)[array], strides[strides.size() - 2], strides.back()};
}

// Attention over all leading axes; `a` has its rule and the sizes of the inner axes.
inline cudaError_t attend(Attention a, const Operand& out, const FourArrays& in, const FourStrides& strides,
                          const Shape& leading, int device, cudaStream_t stream) {
  const Batches<4> batches(leading, strides);
  a.shape.outer = batches.size(1), a.shape.inner = batches.size(0);
  a.dtype = out.dtype, a.kv_dtype = in[1]->dtype;
  for (size_t i = 0; i < 4; ++i) a.strides[i] = strides_of(batches, strides[i], i);
  const Memory partial(size_t(attention_partial(a.shape)) * sizeof(float), device, stream);
  a.partial = static_cast<float*>(partial.data());
  const int64_t results = a.shape.outer * a.shape.inner * a.shape.h * a.shape.t * a.shape.e;
  for (int64_t call = 0; call < batches.calls(); ++call) {
    const auto start = batches.offsets(call);
    a.out = const_cast<char*>(moved(out, call * results));
    a.q = moved(*in[0], start[0]), a.k = moved(*in[1], start[1]), a.v = moved(*in[2], start[2]);
    a.mask = {moved(*in[3], start[3]), any_array(*in[3]).type};
    if (const cudaError_t code = launch_attention(a, stream)) return code;
  }
  return cudaSuccess;
}

inline Attention attention_rule(const Op& op, PyObject* causal, PyObject* scale, PyObject* softcap,
                                PyObject* window, int64_t d) {
  Attention a{};
  const float usual = 1.0f / std::sqrt(float(std::max<int64_t>(d, 1)));
  a.causal = arguments::flag(op, "causal", causal, false);
  a.scale = arguments::optional_number(op, "scale", scale).value_or(usual);
  a.softcap = arguments::optional_number(op, "softcap", softcap).value_or(0.0f);
  a.window = arguments::optional_count(op, "window", window).value_or(0);
  return a;
}

inline py::object attention(const Op& op, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  PyObject* values[9];
  arguments::place(op, values, {"q", "k", "v", "mask", "causal", "scale", "softcap", "window", "out"}, 8, 3,
                   args, given, keywords);
  Call call(op);
  const Axes& axes = call.axes;
  const Operand& q = call.array("q", "... h t d", values[0], {kFloats, Layout::rows});
  Attention a = attention_rule(op, values[4], values[5], values[6], values[7], axes["d"]);
  const Operand& k = call.array("k", "... g s d", values[1], {kFloats, Layout::rows});
  const int64_t h = axes["h"], g = axes["g"];
  axes.require(h == g || (g != 0 && h % g == 0), k, "... g s d", "h a multiple of g", "h", "g");
  const Operand& v = call.array("v", "... g s e", values[2], {kFloats, Layout::rows});
  check_dtype(op, v, k, false);
  const Operand& mask = call.mask("mask", "... h t s", values[3]);
  const Operand& out = call.result(values[8], q.dtype, axes.shape({"h", "t", "e"}));
  a.shape = {1, 1, h, g, axes["t"], axes["s"], axes["d"], axes["e"]};
  if (a.window >= a.shape.s) a.window = 0;  // it reaches every key of every query
  return call.run([&, device = call.device()](cudaStream_t stream) {
    const Shape queries = axes.shape({"h", "t"}), keys = axes.shape({"g", "s"});
    const FourStrides strides{strides_along(queries, q, 1), strides_along(keys, k, 1),
                              strides_along(keys, v, 1), strides_along(queries, mask, 1)};
    return attend(a, out, {&q, &k, &v, &mask}, strides, axes.leading, device, stream);
  });
}

}  // namespace airllm::cuda
