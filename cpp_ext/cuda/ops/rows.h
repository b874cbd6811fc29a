// Ops that compute each row (the last axis) independently.
#pragma once

#include "../arrays/broadcast.h"
#include "ops.h"

namespace airllm::cuda {

inline Launch rms_norm(const Call&, const Operand& out, const Operand& x, const Operand& weight, float eps) {
  return [&, eps](cudaStream_t stream) {
    return launch_rms_norm(out.at, x.at, weight.at, x.dtype, weight.dtype, rows_of(x), x.axis(1), eps,
                           stream);
  };
}

inline Launch layer_norm(const Call&, const Operand& out, const Operand& x, const Operand& weight,
                         const Operand& bias, float eps) {
  return [&, eps](cudaStream_t stream) {
    return launch_layer_norm(out.at, x.at, any_array(weight), any_array(bias), x.dtype, rows_of(x), x.axis(1),
                             eps, stream);
  };
}

inline Launch add_rms_norm(const Call&, const Operand& sum, const Operand& normed, const Operand& x,
                           const Operand& residual, const Operand& weight, float eps) {
  return [&, eps](cudaStream_t stream) {
    return launch_add_rms_norm(sum.at, normed.at, x.at, residual.at, any_array(weight), x.dtype, rows_of(x),
                               x.axis(1), eps, stream);
  };
}

inline Launch softmax(const Call& call, const Operand& out, const Operand& x, float scale,
                      const Operand& mask) {
  const Rows4 rows = rows4(call.op, call.leading, mask, 1);
  return [&, scale, rows](cudaStream_t stream) {
    if (!mask && scale == 1.0f) return launch_softmax(out.at, x.at, x.dtype, rows_of(x), x.axis(1), stream);
    return launch_masked_softmax(out.at, x.at, any_array(mask), rows, x.dtype, rows_of(x), x.axis(1), scale,
                                 stream);
  };
}

inline Launch apply_rope(const Call& call, const Operand& out, const Operand& x, const Operand& cos,
                         const Operand& sin, bool interleaved) {
  if (strides_along(call.leading, sin, 1) != strides_along(call.leading, cos, 1))
    not_implemented(call.op, sin, "is broadcast unlike cos", "the same leading axes");
  const Rows4 rows = rows4(call.op, call.leading, cos, 1);
  return [&, rows, interleaved](cudaStream_t stream) {
    return launch_apply_rope(out.at, x.at, any_array(cos), any_array(sin), rows, x.dtype, rows_of(x),
                             x.axis(1), cos.axis(1), interleaved, stream);
  };
}

}  // namespace airllm::cuda
