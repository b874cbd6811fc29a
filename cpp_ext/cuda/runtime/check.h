// Checks every CUDA call: the error names the call, the failure and, if known, the remedy.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "vendor.h"

namespace airllm::cuda {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const std::string& message) : std::runtime_error(message), code(code) {}

  bool out_of_memory() const { return code == cudaErrorMemoryAllocation; }

  const cudaError_t code;
};

inline const char* remedy(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
      return "free device arrays, or use smaller ones";
    case cudaErrorNoDevice:
      return Vendor::kSeeDevice;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return Vendor::kBuild;
    case cudaErrorInitializationError:
      return "a child of fork() cannot use the device of its parent: start workers with 'spawn'";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
    case cudaErrorECCUncorrectable:
      return "this process can no longer use the GPU: start a new one";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureIsolation:
      return "while a graph is captured, keep to arrays and out= of the library that captures it";
    default:
      return "";
  }
}

inline std::string describe(cudaError_t code) {
  return std::string(cudaGetErrorName(code)) + " (" + std::to_string(int(code)) +
         "): " + cudaGetErrorString(code);
}

[[noreturn]] inline void fail(cudaError_t code, const std::string& call) {
  cudaGetLastError();  // clears a non-sticky error, so that it does not appear in the caller's next call
  const std::string advice = remedy(code);
  throw CudaError(code, call + " failed: " + describe(code) + (advice.empty() ? "" : " - " + advice));
}

inline void check(cudaError_t code, const char* call) {
  if (code != cudaSuccess) fail(code, call);
}

}  // namespace airllm::cuda
