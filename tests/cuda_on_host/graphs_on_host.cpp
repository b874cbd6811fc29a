// Streams that are made, and graphs: what a stream captures runs whenever the graph is launched, with the
// arguments of the time when it was captured.
#include <functional>

#include "state_on_host.h"

using namespace on_host;

namespace {

Nodes* nodes_of(cudaGraph_t graph) { return reinterpret_cast<Nodes*>(graph); }

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  ENTER(cudaStreamCreateWithFlags);
  static std::uintptr_t last = 0x10000;
  last += 16;
  state().made[last] = {current_device, (flags & cudaStreamNonBlocking) == 0};
  *stream = reinterpret_cast<cudaStream_t>(last);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ENTER(cudaStreamDestroy);
  if (const cudaError_t code = refused_in_capture(stream)) return code;
  run_all(key(stream));  // at the latest: it is completed after this
  if (!state().made.erase(reinterpret_cast<std::uintptr_t>(stream))) stop("destroyed what is no stream");
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  ENTER(cudaStreamBeginCapture);
  if (std::get<1>(key(stream)) == 1) return set(cudaErrorStreamCaptureUnsupported);
  if (capture_of(stream)) return set(cudaErrorIllegalState);
  state().captures[key(stream)] = {mode, std::this_thread::get_id(), true, {}};
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  ENTER(cudaStreamEndCapture);
  *graph = nullptr;
  Capture* const found = capture_of(stream);
  if (!found) return set(cudaErrorIllegalState);
  if (found->mode != cudaStreamCaptureModeRelaxed && found->thread != std::this_thread::get_id())
    return breaks(*found, cudaErrorStreamCaptureWrongThread);
  const Capture capture = std::move(*found);
  state().captures.erase(key(stream));
  if (!capture.valid) return set(cudaErrorStreamCaptureInvalidated);
  *graph = reinterpret_cast<cudaGraph_t>(new Nodes(capture.nodes));
  ++state().graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  ENTER(cudaGraphCreate);
  *graph = reinterpret_cast<cudaGraph_t>(new Nodes);
  ++state().graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  ENTER(cudaGraphInstantiateWithFlags);
  *made = reinterpret_cast<cudaGraphExec_t>(new Instance(std::make_shared<const Nodes>(*nodes_of(graph))));
  ++state().graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  ENTER(cudaGraphLaunch);
  if (const cudaError_t code = refused_in_capture(stream)) return code;  // a device makes it a child graph
  return submit(stream, [nodes = *instance_of(graph)] {
    for (const Work& node : *nodes) node();
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  ENTER(cudaGraphDestroy);
  delete nodes_of(graph);
  --state().graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  ENTER(cudaGraphExecDestroy);
  delete instance_of(graph);
  --state().graphs;
  return cudaSuccess;
}

// ---- for the tests, through ctypes

// What the calls below are made with.
struct Place {
  explicit Place(unsigned flags) {
    cudaStreamCreateWithFlags(&stream, flags);
    cudaMalloc(&block, 8);
    cudaMallocHost(&pinned, 8);
    cudaEventCreateWithFlags(&event, 0);
    cudaEventRecord(event, cudaStreamPerThread);
  }
  ~Place() { cudaFree(block), cudaFreeHost(pinned), cudaEventDestroy(event), cudaStreamDestroy(stream); }

  cudaError_t copy(const void* from, cudaStream_t on) const {
    return cudaMemcpyAsync(block, from, 8, cudaMemcpyHostToDevice, on);
  }
  cudaError_t call(const std::string& name);

  cudaStream_t stream = nullptr;
  void *block = nullptr, *pinned = nullptr;
  cudaEvent_t event = nullptr;
  char pageable[8] = {};
};

cudaError_t Place::call(const std::string& name) {
  const std::map<std::string, std::function<cudaError_t()>> calls{
      {"synchronize the stream", [&] { return cudaStreamSynchronize(stream); }},
      {"synchronize the device", [] { return cudaDeviceSynchronize(); }},
      {"synchronize the legacy stream", [] { return cudaStreamSynchronize(cudaStreamLegacy); }},
      {"use the legacy stream", [&] { return copy(pinned, cudaStreamLegacy); }},
      {"use another stream", [&] { return copy(pageable, cudaStreamPerThread); }},
      {"allocate", [&] { return cudaMalloc(&block, 8); }},
      {"allocate host memory", [&] { return cudaMallocHost(&pinned, 8); }},
      {"free", [&] { return cudaFree(block); }},
      {"copy pageable memory", [&] { return copy(pageable, stream); }},
      {"copy pinned memory", [&] { return copy(pinned, stream); }},
      {"wait for what is not captured", [&] { return cudaStreamWaitEvent(stream, event, 0); }},
      {"destroy the stream", [&] { return cudaStreamDestroy(stream); }},
  };
  return calls.at(name)();
}

// The error of a call while a stream captures; `ended` becomes that of the capture's end.
EXPORT int on_host_captured(const char* call, int blocking, int* ended) {
  Place place(blocking ? cudaStreamDefault : cudaStreamNonBlocking);
  cudaStreamBeginCapture(place.stream, cudaStreamCaptureModeThreadLocal);
  const cudaError_t code = place.call(call);
  cudaGraph_t graph = nullptr;
  *ended = cudaStreamEndCapture(place.stream, &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();
  return code;
}

// What two launches of a graph leave of memory that it sets to `value`, which is another one by then.
EXPORT int on_host_replayed(int value) {
  const cudaStream_t stream = cudaStreamPerThread;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launched = nullptr;
  void* block = nullptr;
  unsigned char found = 0;
  cudaMalloc(&block, 1);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  cudaMemsetAsync(block, value, 1, stream);
  value = 99;
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiateWithFlags(&launched, graph, 0);
  for (int n = 0; n < 2; ++n) {
    cudaMemsetAsync(block, 98, 1, stream);
    cudaGraphLaunch(launched, stream);
  }
  cudaMemcpyAsync(&found, block, 1, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  cudaGraphExecDestroy(launched), cudaGraphDestroy(graph), cudaFree(block);
  return found;
}
}
