// Work that is captured once and launched repeatedly: CUDA graphs, the streams that capture them, and the
// host memory that they copy from and to.
#pragma once

#include <functional>
#include <utility>

#include "device.h"
#include "stream.h"
#include "types.h"

namespace airllm::cuda {

// A stream that does not synchronise with the legacy stream, which cannot be used while this one captures.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() {
    if (!lost_in_fork) cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// `count` items of pinned host memory that a graph may copy from or to.
template <class T>
class Pinned {
 public:
  explicit Pinned(size_t count) {
    check(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMallocHost");
  }
  ~Pinned() {
    if (!lost_in_fork) cudaFreeHost(data_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

class Graph {
 public:
  // Captures what `put` enqueues on the stream. Meanwhile this thread must not wait or allocate. All
  // arguments are fixed at capture: values that change between launches must be in memory.
  Graph(cudaStream_t stream, const std::function<void()>& put) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t captured = nullptr;
    try {
      put();
    } catch (...) {
      if (cudaStreamEndCapture(stream, &captured) == cudaSuccess) cudaGraphDestroy(captured);
      cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture");
    const cudaError_t code = cudaGraphInstantiateWithFlags(&graph_, captured, 0);
    cudaGraphDestroy(captured);
    check(code, "cudaGraphInstantiate");
  }
  ~Graph() {
    if (!lost_in_fork) cudaGraphExecDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream) const {
    check(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch");
    ++kernels_launched;
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace airllm::cuda
