// The order of work on a device.
//
// One stream, its home, guards the contents and the memory of each array. Work on another stream first waits
// for the home stream, and makes the home stream wait for it afterwards. So it is always safe to free an
// array on its home stream.
#pragma once

#include "check.h"

namespace airllm::cuda {

// The home stream of this library's arrays: the stream that PyTorch and CuPy use by default, so that arrays
// pass between the libraries without events.
inline cudaStream_t home_stream() { return cudaStreamLegacy; }

// NumPy arrays are copied in, computed and copied out on a stream of the calling thread.
inline cudaStream_t thread_stream() { return cudaStreamPerThread; }

// One handle per stream: 0 is the legacy stream in a module that is compiled like this one.
inline cudaStream_t canonical(cudaStream_t stream) { return stream == nullptr ? cudaStreamLegacy : stream; }

// The number of a stream in DLPack and __cuda_array_interface__: 1 legacy, 2 per thread, else the handle.
// CUDA's own special handles have the same numbers.
inline intptr_t stream_number(cudaStream_t stream) { return reinterpret_cast<intptr_t>(canonical(stream)); }

inline cudaStream_t numbered_stream(intptr_t number) {
  return canonical(reinterpret_cast<cudaStream_t>(number));
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  ~Event() { cudaEventDestroy(event_); }  // pending waits keep what they need
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void hold_back(cudaStream_t stream) const {
    check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  void wait() const { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Work enqueued on `later` from now on starts after the work already on `earlier`. Both are of the current
// device.
inline void order(cudaStream_t earlier, cudaStream_t later) {
  if (canonical(earlier) == canonical(later)) return;
  Event event;
  event.record(earlier);
  event.hold_back(later);
}

// Waits for a stream, also if an exception is thrown: until then the caller's memory may be in use.
class Finish {
 public:
  explicit Finish(cudaStream_t stream) : stream_(stream) {}
  ~Finish() {
    if (!done_ && cudaStreamSynchronize(stream_) != cudaSuccess) cudaGetLastError();  // already throwing
  }
  Finish(const Finish&) = delete;
  Finish& operator=(const Finish&) = delete;

  void now() {
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    done_ = true;
  }
  // No need to wait here.
  void skip() { done_ = true; }

 private:
  cudaStream_t stream_;
  bool done_ = false;
};

}  // namespace airllm::cuda
