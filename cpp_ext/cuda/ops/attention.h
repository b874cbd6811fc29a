// Attention.
#pragma once

#include <array>
#include <cmath>

#include "../arrays/batches.h"
#include "../arrays/broadcast.h"
#include "ops.h"

namespace airllm::cuda {

// q, k, v and mask, and their strides along the leading axes and the two axes after them.
using FourArrays = std::array<const Operand*, 4>;
using FourStrides = std::array<Shape, 4>;

inline const char* offset(const Operand& x, int64_t elements) {
  return x ? static_cast<const char*>(x.at) + elements * int64_t(size_of(x.dtype)) : nullptr;
}

inline AttentionStrides strides_of(const Batches<4>& batches, const Shape& strides, size_t array) {
  return {batches.strides(1)[array], batches.strides(0)[array], strides[strides.size() - 2], strides.back()};
}

// Attention over all leading axes; `a` has the options and the sizes of the inner axes.
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
    a.out = const_cast<char*>(offset(out, call * results));
    a.q = offset(*in[0], start[0]), a.k = offset(*in[1], start[1]), a.v = offset(*in[2], start[2]);
    a.mask = {offset(*in[3], start[3]), any_array(*in[3]).type};
    if (const cudaError_t code = launch_attention(a, stream)) return code;
  }
  return cudaSuccess;
}

template <>
inline constexpr bool kTakesStrides<kAttention> = true;

inline Launch attention(const Call& call, const Operand& out, const Operand& q, const Operand& k,
                        const Operand& v, const Operand& mask, bool causal, std::optional<float> scale,
                        std::optional<float> softcap, std::optional<int64_t> window, const Operand& sinks) {
  check_dtype(call.op, v, k.dtype, false);
  const int64_t h = q.axis(3), t = q.axis(2), g = k.axis(3), s = k.axis(2);
  Attention a{};
  a.shape = {1, 1, h, g, t, s, q.axis(1), v.axis(1)};
  a.causal = causal;
  a.scale = scale.value_or(1.0f / std::sqrt(float(std::max<int64_t>(q.axis(1), 1))));
  a.softcap = softcap.value_or(0.0f);
  a.window = window.value_or(0);
  if (a.window >= s) a.window = 0;  // a query sees every key anyway
  Shape queries = call.leading, keys = call.leading;
  queries.insert(queries.end(), {h, t});
  keys.insert(keys.end(), {g, s});
  return [&, a, queries, keys, device = call.device()](cudaStream_t stream) mutable {
    a.sinks = any_array(sinks);
    const FourStrides strides{strides_along(queries, q, 1), strides_along(keys, k, 1),
                              strides_along(keys, v, 1), strides_along(queries, mask, 1)};
    return attend(a, out, {&q, &k, &v, &mask}, strides, call.leading, device, stream);
  };
}

}  // namespace airllm::cuda
