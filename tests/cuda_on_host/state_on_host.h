// The stand-in's machine: devices, memory, streams and what waits on them, and streams whose work is
// captured.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime_on_host.h"

namespace on_host {

// A stream of a device; the per-thread stream is one for each host thread.
using Key = std::tuple<int, std::uintptr_t, std::thread::id>;

struct Moment {
  Key stream;
  uint64_t count;  // tasks of the stream that come before
};

struct Task {
  std::function<void()> work;
  std::vector<Moment> after;
};

struct Stream {
  std::deque<Task> waiting;
  uint64_t issued = 0, done = 0;
};

struct Allocation {
  size_t bytes;
  int device;
};

struct Failure {
  int countdown;
  cudaError_t code;
};

using Work = std::function<void()>;
using Nodes = std::vector<Work>;                // of a graph, in the order in which they run
using Instance = std::shared_ptr<const Nodes>;  // what is launched outlives its handle

inline Instance* instance_of(cudaGraphExec_t graph) { return reinterpret_cast<Instance*>(graph); }

// What a stream captures in place of running it.
struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool valid = true;
  Nodes nodes;
};

// A stream that was made, which the legacy stream waits for if it is a blocking one.
struct Made {
  int device;
  bool blocking;
};

struct State {
  std::recursive_mutex mutex;
  std::map<Key, Stream> streams;
  std::map<Key, Capture> captures;
  std::map<std::uintptr_t, Made> made;
  std::map<char*, Allocation> memory;
  std::map<const char*, size_t> pinned;
  std::map<std::string, Failure> failures;
  std::map<std::string, int> calls;  // of each function
  int graphs = 0;                    // and what was instantiated of them
  int devices = 2, driver = 13000, pools = 1;
  size_t capacity = size_t(1) << 30;
};

inline State& state() {
  static auto& made = *new State;
  return made;
}

inline thread_local int current_device = 0;
inline thread_local cudaError_t last_error = cudaSuccess;

using Lock = std::lock_guard<std::recursive_mutex>;

[[noreturn]] inline void stop(const char* what) {
  std::fprintf(stderr, "CUDA stand-in: %s\n", what);
  std::abort();
}

inline cudaError_t set(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

inline Key key(cudaStream_t stream) {
  auto number = reinterpret_cast<std::uintptr_t>(stream);
  if (number == 0) number = 1;
  const auto made = state().made.find(number);
  const int device = made == state().made.end() ? current_device : made->second.device;
  return {device, number, number == 2 ? std::this_thread::get_id() : std::thread::id()};
}

inline void run_until(const Moment& moment) {
  Stream& stream = state().streams[moment.stream];
  while (stream.done < moment.count) {
    Task task = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    ++stream.done;
    for (const Moment& before : task.after) run_until(before);
    if (task.work) task.work();
  }
}

inline void run_all(const Key& name) { run_until({name, state().streams[name].issued}); }

inline void put(cudaStream_t stream, Task task) {
  Stream& on = state().streams[key(stream)];
  on.waiting.push_back(std::move(task));
  ++on.issued;
}

// The allocation that a range lies in, or null.
inline std::pair<char* const, Allocation>* allocation(const void* pointer) {
  auto& memory = state().memory;
  auto after = memory.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
  if (after == memory.begin()) return nullptr;
  auto& found = *--after;
  return static_cast<const char*>(pointer) < found.first + found.second.bytes ? &found : nullptr;
}

inline void require_device_range(const void* pointer, size_t bytes) {
  const auto* found = allocation(pointer);
  const char* end = static_cast<const char*>(pointer) + bytes;
  if (!found || end > found->first + found->second.bytes) stop("a copy leaves its device allocation");
}

inline cudaError_t allocate(void** pointer, size_t bytes) {
  size_t used = bytes;
  for (const auto& [address, found] : state().memory) used += found.bytes;
  if (used > state().capacity) return set(cudaErrorMemoryAllocation);
  char* made = static_cast<char*>(std::malloc(bytes));
  std::memset(made, 0xff, bytes);  // NaN in every dtype: reading it shows
  state().memory[made] = {bytes, current_device};
  *pointer = made;
  return cudaSuccess;
}

inline void release(void* pointer) {
  const auto found = state().memory.find(static_cast<char*>(pointer));
  if (found == state().memory.end()) stop("freed what is not allocated");
  std::memset(pointer, 0xff, found->second.bytes);
  state().memory.erase(found);
  std::free(pointer);
}

inline bool is_pinned(const void* pointer, size_t bytes) {
  const auto* start = static_cast<const char*>(pointer);
  auto after = state().pinned.upper_bound(start);
  return after != state().pinned.begin() && start + bytes <= (--after)->first + after->second;
}

// ---- capture, by the rules of CUDA's programming guide: what breaks one makes the whole capture invalid

inline Capture* capture_of(cudaStream_t stream) {
  const auto found = state().captures.find(key(stream));
  return found == state().captures.end() ? nullptr : &found->second;
}

inline cudaError_t breaks(Capture& capture, cudaError_t code) {
  capture.valid = false;
  return set(code);
}

inline bool is_blocking(const Key& name) {
  const auto found = state().made.find(std::get<1>(name));
  return found == state().made.end() || found->second.blocking;
}

// Why nothing can be put on a stream, or cudaSuccess. The legacy stream would wait for every blocking one,
// which a captured one cannot be waited for.
inline cudaError_t why_unusable(cudaStream_t stream) {
  const Key name = key(stream);
  for (auto& [other, capture] : state().captures) {
    if (other == name && !capture.valid) return set(cudaErrorStreamCaptureInvalidated);
    const bool implicit = std::get<1>(name) == 1 && std::get<0>(other) == current_device;
    if (implicit && is_blocking(other)) return breaks(capture, cudaErrorStreamCaptureImplicit);
  }
  return cudaSuccess;
}

// Why a call that may wait for the device, such as cudaMalloc, is refused to this thread, or cudaSuccess.
inline cudaError_t why_unsafe() {
  for (auto& [name, capture] : state().captures) {
    const bool own = capture.thread == std::this_thread::get_id();
    if (capture.mode == cudaStreamCaptureModeGlobal || (own && capture.mode != cudaStreamCaptureModeRelaxed))
      return breaks(capture, cudaErrorStreamCaptureUnsupported);
  }
  return cudaSuccess;
}

// Puts work on a stream, or into the graph that it captures.
inline cudaError_t submit(cudaStream_t stream, Work work) {
  if (const cudaError_t code = why_unusable(stream)) return code;
  if (Capture* capture = capture_of(stream)) {
    capture->nodes.push_back(std::move(work));
  } else {
    put(stream, {std::move(work), {}});
  }
  return cudaSuccess;
}

// What cannot go into a graph, here or on any device.
inline cudaError_t refused_in_capture(cudaStream_t stream) {
  if (const cudaError_t code = why_unusable(stream)) return code;
  Capture* const capture = capture_of(stream);
  return capture ? breaks(*capture, cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

}  // namespace on_host

#define ENTER(function)                                         \
  Lock lock(state().mutex);                                     \
  if (const cudaError_t code = failing(#function)) return code; \
  if (state().driver == 0) return set(cudaErrorInsufficientDriver)

#define EXPORT __attribute__((visibility("default")))
