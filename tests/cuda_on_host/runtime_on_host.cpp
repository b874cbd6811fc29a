#include "runtime_on_host.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace on_host {
namespace {

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

struct State {
  std::recursive_mutex mutex;
  std::map<Key, Stream> streams;
  std::map<char*, Allocation> memory;
  std::map<std::string, Failure> failures;
  int devices = 2, driver = 13000, pools = 1;
  size_t capacity = size_t(1) << 30;
};

State& state() {
  static auto& made = *new State;
  return made;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

using Lock = std::lock_guard<std::recursive_mutex>;

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "CUDA stand-in: %s\n", what);
  std::abort();
}

cudaError_t set(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

Key key(cudaStream_t stream) {
  auto number = reinterpret_cast<std::uintptr_t>(stream);
  if (number == 0) number = 1;
  return {current_device, number, number == 2 ? std::this_thread::get_id() : std::thread::id()};
}

void run_until(const Moment& moment) {
  Stream& stream = state().streams[moment.stream];
  while (stream.done < moment.count) {
    Task task = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    ++stream.done;
    for (const Moment& before : task.after) run_until(before);
    if (task.work) task.work();
  }
}

void run_all(const Key& name) { run_until({name, state().streams[name].issued}); }

void put(cudaStream_t stream, Task task) {
  Stream& on = state().streams[key(stream)];
  on.waiting.push_back(std::move(task));
  ++on.issued;
}

// The allocation that a range lies in, or null.
std::pair<char* const, Allocation>* allocation(const void* pointer) {
  auto& memory = state().memory;
  auto after = memory.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
  if (after == memory.begin()) return nullptr;
  auto& found = *--after;
  return static_cast<const char*>(pointer) < found.first + found.second.bytes ? &found : nullptr;
}

void require_device_range(const void* pointer, size_t bytes) {
  const auto* found = allocation(pointer);
  const char* end = static_cast<const char*>(pointer) + bytes;
  if (!found || end > found->first + found->second.bytes) stop("a copy leaves its device allocation");
}

cudaError_t allocate(void** pointer, size_t bytes) {
  size_t used = bytes;
  for (const auto& [address, found] : state().memory) used += found.bytes;
  if (used > state().capacity) return set(cudaErrorMemoryAllocation);
  char* made = static_cast<char*>(std::malloc(bytes));
  std::memset(made, 0xff, bytes);  // NaN in every dtype: reading it shows
  state().memory[made] = {bytes, current_device};
  *pointer = made;
  return cudaSuccess;
}

void release(void* pointer) {
  const auto found = state().memory.find(static_cast<char*>(pointer));
  if (found == state().memory.end()) stop("freed what is not allocated");
  std::memset(pointer, 0xff, found->second.bytes);
  state().memory.erase(found);
  std::free(pointer);
}

struct EventMoment {
  bool recorded = false;
  Moment moment{};
};

}  // namespace

cudaError_t failing(const char* function) {
  Lock lock(state().mutex);
  const auto found = state().failures.find(function);
  if (found == state().failures.end() || --found->second.countdown > 0) return cudaSuccess;
  const cudaError_t code = found->second.code;
  state().failures.erase(found);
  return set(code);
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  Lock lock(state().mutex);
  put(stream, {std::move(work), {}});
}

}  // namespace on_host

using namespace on_host;

#define ENTER(function)                                         \
  Lock lock(state().mutex);                                     \
  if (const cudaError_t code = failing(#function)) return code; \
  if (state().driver == 0) return set(cudaErrorInsufficientDriver)

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

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) {
  ENTER(cudaMallocAsync);
  if (!state().pools) return set(cudaErrorNotSupported);
  return allocate(pointer, bytes);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  ENTER(cudaFreeAsync);
  put(stream, {[pointer] { release(pointer); }, {}});
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  ENTER(cudaMalloc);
  return allocate(pointer, bytes);
}

cudaError_t cudaDeviceSynchronize() {
  ENTER(cudaDeviceSynchronize);
  for (auto& [name, stream] : state().streams) {
    if (std::get<0>(name) == current_device) run_all(name);
  }
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  ENTER(cudaFree);
  cudaDeviceSynchronize();
  release(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  ENTER(cudaMemcpyAsync);
  put(stream, {[=] {
                 if (kind != cudaMemcpyHostToDevice) require_device_range(from, bytes);
                 if (kind != cudaMemcpyDeviceToHost) require_device_range(to, bytes);
                 std::memcpy(to, from, bytes);
               },
               {}});
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  ENTER(cudaMemsetAsync);
  put(stream, {[=] {
                 require_device_range(pointer, bytes);
                 std::memset(pointer, value, bytes);
               },
               {}});
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ENTER(cudaStreamSynchronize);
  run_all(key(stream));
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  ENTER(cudaEventCreateWithFlags);
  *event = reinterpret_cast<cudaEvent_t>(new EventMoment);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<EventMoment*>(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER(cudaEventRecord);
  *reinterpret_cast<EventMoment*>(event) = {true, {key(stream), state().streams[key(stream)].issued}};
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ENTER(cudaStreamWaitEvent);
  const auto& found = *reinterpret_cast<EventMoment*>(event);
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

#define EXPORT __attribute__((visibility("default")))

EXPORT void on_host_reset() {
  Lock lock(state().mutex);
  state().failures.clear();
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

EXPORT size_t on_host_live_blocks() {
  Lock lock(state().mutex);
  for (auto& [name, stream] : state().streams) run_all(name);
  return state().memory.size();
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
