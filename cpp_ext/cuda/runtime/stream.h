// The order of work on a device.
//
// Content and memory of every array are guarded by one stream, its home: whoever works on another stream
// waits for the home before, and lets the home wait for him after. So freeing on the home is always safe.
#pragma once

#include "check.h"

namespace airllm::cuda {

// The home of this library's arrays: the stream that PyTorch and CuPy use too unless told otherwise,
// so that arrays pass between the libraries without any event.
inline cudaStream_t home_stream() { return cudaStreamLegacy; }

// NumPy arrays are copied in, computed and copied out on a stream of the calling thread.
inline cudaStream_t thread_stream() { return cudaStreamPerThread; }

// One name for each stream: 0 is the legacy stream in a module compiled as this one is.
inline cudaStream_t canonical(cudaStream_t stream) { return stream == nullptr ? cudaStreamLegacy : stream; }

// A stream in the numbers of DLPack and __cuda_array_interface__: 1 legacy, 2 per thread, else the handle.
// CUDA's own special handles are these same numbers.
inline intptr_t stream_number(cudaStream_t stream) { return reinterpret_cast<intptr_t>(canonical(stream)); }

inline cudaStream_t numbered_stream(intptr_t number) {
  return canonical(reinterpret_cast<cudaStream_t>(number));
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  ~Event() { cudaEventDestroy(event_); }  // waits that are under way keep what they need
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void hold_back(cudaStream_t stream) {
    check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// What is on `later` from now on starts after what is on `earlier` by now. Both are of the current device.
inline void order(cudaStream_t earlier, cudaStream_t later) {
  if (canonical(earlier) == canonical(later)) return;
  Event event;
  event.record(earlier);
  event.hold_back(later);
}

// Waits for a stream, also when an exception leaves: until then memory of others may be in use.
class Finish {
 public:
  explicit Finish(cudaStream_t stream) : stream_(stream) {}
  ~Finish() {
    if (!done_ && cudaStreamSynchronize(stream_) != cudaSuccess) cudaGetLastError();  // one is under way
  }
  Finish(const Finish&) = delete;
  Finish& operator=(const Finish&) = delete;

  void now() {
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    done_ = true;
  }
  // Nothing is left that has to be waited for here.
  void unneeded() { done_ = true; }

 private:
  cudaStream_t stream_;
  bool done_ = false;
};

}  // namespace airllm::cuda
