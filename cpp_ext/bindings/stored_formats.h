// What a native module tells of the stored formats that its kernels read.
#pragma once
#include <pybind11/pybind11.h>

#include "../cpu/quantized/formats.h"

// For each format ggml's number, and values and bytes of a block, as airllm.formats.FORMATS has them.
template <class HasKernels>
pybind11::dict stored_formats(const HasKernels& has_kernels) {
  pybind11::dict found;
  for (int f = cpu::kQ8_0; f < cpu::kFormats; ++f) {
    const cpu::Block& block = cpu::kBlocks[f];
    if (has_kernels(f)) found[block.name] = pybind11::make_tuple(block.ggml_type, block.values, block.bytes);
  }
  return found;
}
