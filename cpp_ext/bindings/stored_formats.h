// Lists the stored formats that a native module's kernels read.
#pragma once
#include <pybind11/pybind11.h>

#include "../cpu/quantized/formats.h"

// Each format with ggml's number and a block's values and bytes, as in airllm.formats.FORMATS.
template <class HasKernels>
pybind11::dict stored_formats(const HasKernels& has_kernels) {
  pybind11::dict found;
  for (int f = cpu::kQ8_0; f < cpu::kFormats; ++f) {
    const cpu::Block& block = cpu::kBlocks[f];
    if (has_kernels(f)) found[block.name] = pybind11::make_tuple(block.ggml_type, block.values, block.bytes);
  }
  return found;
}
