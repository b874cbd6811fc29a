// Work that is put on a stream once and launched again and again: CUDA graphs, the streams that capture them,
// and the host memory that they copy from and to.
#pragma once

#include <functional>
#include <utility>

#include "../launch/launch.h"
#include "device.h"
#include "stream.h"

namespace airllm::cuda {

// A stream that the legacy one does not wait for: that could not be used while this one captures.
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

// `count` items of host memory that a graph may copy from or to: it stays where it is, and in memory.
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
  // What `put` puts on the stream, and this thread must not wait for, nor allocate, meanwhile. All arguments
  // stay what they are now: what is to differ from launch to launch lies in memory.
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
