#include "state_on_host.h"

namespace on_host {
namespace {

struct EventMoment {
  bool recorded = false;
  Moment moment{};
};

}  // namespace

cudaError_t failing(const char* function) {
  Lock lock(state().mutex);
  ++state().calls[function];
  const auto found = state().failures.find(function);
  if (found == state().failures.end() || --found->second.countdown > 0) return cudaSuccess;
  const cudaError_t code = found->second.code;
  state().failures.erase(found);
  return set(code);
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  Lock lock(state().mutex);
  if (std::get<0>(key(stream)) != current_device) return set(cudaErrorInvalidResourceHandle);
  return submit(stream, std::move(work));
}

}  // namespace on_host

using namespace on_host;

// ---- the runtime's functions

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t code = last_error;
  last_error = cudaSuccess;
  return code;
}

const char* cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfTheStandIn";
}

const char* cudaGetErrorString(cudaError_t) { return "an error that the test asked for"; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = state().driver;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  ENTER(cudaGetDeviceCount);
  *count = state().devices;
  return *count ? cudaSuccess : set(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  ENTER(cudaGetDevice);
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  ENTER(cudaSetDevice);
  if (device < 0 || device >= state().devices) return set(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  ENTER(cudaDeviceGetAttribute);
  *value = which == cudaDevAttrMemoryPoolsSupported ? state().pools : 2;  // multiprocessors
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  ENTER(cudaGetDeviceProperties);
  std::snprintf(properties->name, sizeof properties->name, "Stand-in %d", device);
  properties->major = 9;
  properties->multiProcessorCount = 2;
  properties->totalGlobalMem = state().capacity;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  ENTER(cudaMemGetInfo);
  *total = *free_bytes = state().capacity;
  for (const auto& [address, found] : state().memory) *free_bytes -= found.bytes;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  ENTER(cudaDeviceGetDefaultMemPool);
  *pool = nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  ENTER(cudaMemPoolSetAttribute);
  return cudaSuccess;
}

// A device makes these two nodes of a graph that owns the memory; nothing here needs that.
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  ENTER(cudaMallocAsync);
  if (!state().pools) return set(cudaErrorNotSupported);
  if (const cudaError_t code = refused_in_capture(stream)) return code;
  return allocate(pointer, bytes);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  ENTER(cudaFreeAsync);
  if (const cudaError_t code = refused_in_capture(stream)) return code;
  return submit(stream, [pointer] { release(pointer); });
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  ENTER(cudaMalloc);
  if (const cudaError_t code = why_unsafe()) return code;
  return allocate(pointer, bytes);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  ENTER(cudaMallocHost);
  if (const cudaError_t code = why_unsafe()) return code;
  *pointer = std::malloc(bytes);
  std::memset(*pointer, 0xff, bytes);
  state().pinned[static_cast<char*>(*pointer)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  ENTER(cudaFreeHost);
  if (const cudaError_t code = why_unsafe()) return code;
  cudaDeviceSynchronize();
  if (!state().pinned.erase(static_cast<char*>(pointer))) stop("freed what is no pinned memory");
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  ENTER(cudaDeviceSynchronize);
  for (auto& [name, capture] : state().captures) {
    if (std::get<0>(name) == current_device) return breaks(capture, cudaErrorStreamCaptureUnsupported);
  }
  for (auto& [name, stream] : state().streams) {
    if (std::get<0>(name) == current_device) run_all(name);
  }
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  ENTER(cudaFree);
  if (const cudaError_t code = why_unsafe()) return code;
  cudaDeviceSynchronize();
  release(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  ENTER(cudaMemcpyAsync);
  const void* host = kind == cudaMemcpyHostToDevice ? from : kind == cudaMemcpyDeviceToHost ? to : nullptr;
  if (host && !is_pinned(host, bytes)) {  // a graph would hold on to memory that may be gone when it runs
    if (const cudaError_t code = refused_in_capture(stream)) return code;
  }
  return submit(stream, [=] {
    if (kind != cudaMemcpyHostToDevice) require_device_range(from, bytes);
    if (kind != cudaMemcpyDeviceToHost) require_device_range(to, bytes);
    std::memcpy(to, from, bytes);
  });
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  ENTER(cudaMemsetAsync);
  return submit(stream, [=] {
    require_device_range(pointer, bytes);
    std::memset(pointer, value, bytes);
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ENTER(cudaStreamSynchronize);
  if (const cudaError_t code = refused_in_capture(stream)) return code;
  run_all(key(stream));
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  ENTER(cudaEventCreateWithFlags);
  *event = reinterpret_cast<cudaEvent_t>(new EventMoment);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER(cudaEventSynchronize);
  const auto& found = *reinterpret_cast<EventMoment*>(event);
  if (found.recorded) run_until(found.moment);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<EventMoment*>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER(cudaEventRecord);
  if (const cudaError_t code = refused_in_capture(stream)) return code;  // a device has events in graphs
  *reinterpret_cast<EventMoment*>(event) = {true, {key(stream), state().streams[key(stream)].issued}};
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ENTER(cudaStreamWaitEvent);
  const auto& found = *reinterpret_cast<EventMoment*>(event);
  if (const cudaError_t code = why_unusable(stream)) return code;
  if (Capture* capture = capture_of(stream)) return breaks(*capture, cudaErrorStreamCaptureIsolation);
  if (found.recorded) put(stream, {nullptr, {found.moment}});
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  ENTER(cudaPointerGetAttributes);
  const auto* found = allocation(pointer);
  attributes->type = found ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->device = found ? found->second.device : -2;
  return cudaSuccess;
}

// ---- for the tests, through ctypes

EXPORT void on_host_reset() {
  Lock lock(state().mutex);
  state().failures.clear();
  state().calls.clear();
  state().devices = 2, state().driver = 13000, state().pools = 1;
  state().capacity = size_t(1) << 30;
  last_error = cudaSuccess;
}

EXPORT void on_host_fail(const char* function, int nth, int code) {
  Lock lock(state().mutex);
  state().failures[function] = {nth, cudaError_t(code)};
}

EXPORT void on_host_machine(int driver, int devices, int pools, size_t capacity) {
  Lock lock(state().mutex);
  state().driver = driver, state().devices = devices, state().pools = pools, state().capacity = capacity;
}

EXPORT int on_host_unused_failures() { return int(state().failures.size()); }

EXPORT int on_host_current_device() { return current_device; }

EXPORT int on_host_calls(const char* function) {
  Lock lock(state().mutex);
  return state().calls[function];
}

// Blocks of memory, streams and graphs that are there.
EXPORT size_t on_host_live_blocks() {
  Lock lock(state().mutex);
  for (auto& [name, stream] : state().streams) run_all(name);
  return state().memory.size() + state().pinned.size() + state().made.size() + size_t(state().graphs);
}

// Another library's memory, and its work on its own stream.

struct OnDevice {
  explicit OnDevice(int device) : lock(state().mutex), before(current_device) { current_device = device; }
  ~OnDevice() { current_device = before; }

  Lock lock;
  int before;
};

EXPORT void* on_host_allocate(size_t bytes, int device) {
  const OnDevice guard(device);
  void* pointer = nullptr;
  allocate(&pointer, bytes);
  return pointer;
}

EXPORT void on_host_release(void* pointer) {
  Lock lock(state().mutex);
  release(pointer);
}

EXPORT void on_host_enqueue(std::uintptr_t stream, int device, void (*work)(void*), void* argument) {
  const OnDevice guard(device);
  if (capture_of(reinterpret_cast<cudaStream_t>(stream))) stop("another library's work in a capture");
  put(reinterpret_cast<cudaStream_t>(stream), {[=] { work(argument); }, {}});
}

EXPORT void on_host_synchronize(std::uintptr_t stream, int device) {
  const OnDevice guard(device);
  run_all(key(reinterpret_cast<cudaStream_t>(stream)));
}

EXPORT void on_host_write(void* to, const void* from, size_t bytes, std::uintptr_t stream, int device) {
  const OnDevice guard(device);
  std::vector<char> content(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
  put(reinterpret_cast<cudaStream_t>(stream), {[=] { std::memcpy(to, content.data(), bytes); }, {}});
}

EXPORT void on_host_copy(void* to, const void* from, size_t bytes, std::uintptr_t stream, int device) {
  const OnDevice guard(device);
  put(reinterpret_cast<cudaStream_t>(stream), {[=] { std::memcpy(to, from, bytes); }, {}});
}

EXPORT void on_host_wait(std::uintptr_t later, std::uintptr_t earlier, int device) {
  const OnDevice guard(device);
  const Key name = key(reinterpret_cast<cudaStream_t>(earlier));
  put(reinterpret_cast<cudaStream_t>(later), {nullptr, {{name, state().streams[name].issued}}});
}
}
