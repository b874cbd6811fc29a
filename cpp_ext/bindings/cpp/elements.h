// Element-wise ops: each element of the result depends on the same element of the inputs.
#pragma once
#include "../../cpu/threads/parallel_elements.h"
#include "run.h"

namespace [[gnu::visibility("hidden")]] ops {

inline void map(cpu::MapKernel* const* kernels, const Array& out, const Array& x) {
  run(x.size, [&] { cpu::threaded::map(kernels[x.dtype], x.dtype, out.data, x.data, x.size); });
}

inline void map(cpu::PairKernel* const* kernels, const Array& out, const Array& gate, const Array& up) {
  run(gate.size,
      [&] { cpu::threaded::map(kernels[gate.dtype], gate.dtype, out.data, gate.data, up.data, gate.size); });
}

inline void silu(const Array& out, const Array& x) { map(active.load()->elements.silu, out, x); }

inline void gelu(const Array& out, const Array& x, size_t form) {
  map(active.load()->elements.gelu[form], out, x);
}

inline void swiglu(const Array& out, const Array& gate, const Array& up) {
  map(active.load()->elements.swiglu, out, gate, up);
}

inline void geglu(const Array& out, const Array& gate, const Array& up, size_t form) {
  map(active.load()->elements.geglu[form], out, gate, up);
}

}  // namespace ops
