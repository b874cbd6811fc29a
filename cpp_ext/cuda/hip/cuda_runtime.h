// See cuda_runtime_api.h.
#pragma once

#include <hip/hip_runtime.h>

#include "cuda_runtime_api.h"

template <class... Parameters>
hipError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                            size_t shared_bytes, hipStream_t stream) {
  return hipLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared_bytes, stream);
}
