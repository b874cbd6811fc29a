// Element-wise ops.
#pragma once

#include "ops.h"

namespace airllm::cuda {

using LaunchUnary = cudaError_t (*)(void*, const void*, DType, int64_t, cudaStream_t);
using LaunchGate = cudaError_t (*)(void*, const void*, const void*, DType, int64_t, cudaStream_t);

inline Launch unary(LaunchUnary launch, const Operand& out, const Operand& x) {
  return [&, launch](cudaStream_t stream) { return launch(out.at, x.at, x.dtype, x.size, stream); };
}

inline Launch binary(LaunchGate launch, const Operand& out, const Operand& gate, const Operand& up) {
  return [&, launch](cudaStream_t stream) {
    return launch(out.at, gate.at, up.at, gate.dtype, gate.size, stream);
  };
}

inline Launch silu(const Call&, const Operand& out, const Operand& x) { return unary(launch_silu, out, x); }

inline Launch gelu(const Call&, const Operand& out, const Operand& x, size_t form) {
  return unary(form == 0 ? launch_gelu : launch_gelu_erf, out, x);
}

inline Launch swiglu(const Call&, const Operand& out, const Operand& gate, const Operand& up) {
  return binary(launch_swiglu, out, gate, up);
}

inline Launch geglu(const Call&, const Operand& out, const Operand& gate, const Operand& up, size_t form) {
  return binary(form == 0 ? launch_geglu : launch_geglu_erf, out, gate, up);
}

}  // namespace airllm::cuda
