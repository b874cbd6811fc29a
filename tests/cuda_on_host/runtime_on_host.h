// A stand-in for the CUDA runtime, in host memory. Streams do nothing until somebody waits for them, which is
// the worst that a real device may do: a missing event or wait gives wrong numbers here, every time.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace on_host {

// Counts a call of the function; the error that the test wants from it, or cudaSuccess.
cudaError_t failing(const char* function);

// Whether a device could run such a grid.
inline bool is_launchable(unsigned blocks, unsigned threads) {
  return blocks != 0 && threads != 0 && threads <= 1024 && threads % 32 == 0;
}

// Puts work on a stream of the current device, or into the graph that it captures.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace on_host
