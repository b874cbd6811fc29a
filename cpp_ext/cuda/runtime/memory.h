// Device memory, allocated and freed in stream order: from the driver's pool if the device supports pools,
// else from cudaMalloc and a free list.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device.h"
#include "stream.h"

namespace airllm::cuda {

// Blocks for a device without memory pools. A freed block is reused only on the stream on which it was freed,
// after the work that used it; never on another stream.
class FreeList {
 public:
  static size_t round_up(size_t bytes) {
    size_t size = 512;
    while (size < bytes && size < (size_t(1) << 20)) size *= 2;
    const size_t step = size_t(1) << 20;
    return size >= bytes ? size : (bytes + step - 1) / step * step;
  }

  cudaError_t allocate(void** pointer, size_t bytes, cudaStream_t stream) {
    const size_t size = round_up(bytes);
    if ((*pointer = take(size, stream))) return cudaSuccess;
    cudaError_t code = cudaMalloc(pointer, size);
    if (code == cudaErrorMemoryAllocation && release() > 0) {
      cudaGetLastError();
      code = cudaMalloc(pointer, size);
    }
    return code;
  }

  void free(void* pointer, size_t bytes, cudaStream_t stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[{stream, round_up(bytes)}].push_back(pointer);
  }

 private:
  using Key = std::pair<cudaStream_t, size_t>;

  void* take(size_t size, cudaStream_t stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find({stream, size});
    if (found == blocks_.end() || found->second.empty()) return nullptr;
    void* pointer = found->second.back();
    found->second.pop_back();
    return pointer;
  }

  // Returns every block to the device; returns their number.
  size_t release() {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t released = 0;
    for (auto& [key, pointers] : blocks_) {
      for (void* pointer : pointers) cudaFree(pointer);  // waits for the work that uses it
      released += pointers.size();
    }
    blocks_.clear();
    return released;
  }

  std::mutex mutex_;
  std::map<Key, std::vector<void*>> blocks_;
};

// How a device allocates memory.
struct Heap {
  bool pooled = false;
  FreeList list;
};

// Up to a quarter of the device's memory stays in the pool between calls and is not returned to the driver.
inline void keep_freed_memory(int device) {
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  uint64_t threshold = device_facts(device).total_memory / 4;
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
        "cudaMemPoolSetAttribute");
}

// The heap of a device, initialised on first use.
inline Heap& heap(int device) {
  static std::mutex mutex;
  static auto& heaps =
      *new std::map<int, std::unique_ptr<Heap>>;  // outlives the arrays of an interpreter that shuts down
  std::lock_guard<std::mutex> lock(mutex);
  auto& found = heaps[device];
  if (!found) {
    auto heap = std::make_unique<Heap>();
    heap->pooled = attribute(cudaDevAttrMemoryPoolsSupported, device) != 0;
    if (heap->pooled) keep_freed_memory(device);
    found = std::move(heap);
  }
  return *found;
}

[[noreturn]] inline void fail_to_allocate(cudaError_t code, size_t bytes, int device) {
  cudaGetLastError();
  size_t free_bytes = 0, total = 0;
  std::string state;
  if (code == cudaErrorMemoryAllocation && cudaMemGetInfo(&free_bytes, &total) == cudaSuccess) {
    state = " (" + std::to_string(free_bytes) + " of " + std::to_string(total) + " bytes are free)";
  }
  fail(code, "allocating " + std::to_string(bytes) + " bytes on " + device_name(device) + state);
}

// A block of device memory that is freed in the order of its home stream.
class Memory {
 public:
  Memory() = default;
  // Memory of the current device, which must be `device`.
  Memory(size_t bytes, int device, cudaStream_t home) : bytes_(bytes), device_(device), home_(home) {
    if (bytes == 0) return;
    Heap& from = heap(device);
    const cudaError_t code =
        from.pooled ? cudaMallocAsync(&data_, bytes, home) : from.list.allocate(&data_, bytes, home);
    if (code != cudaSuccess) fail_to_allocate(code, bytes, device);
  }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory() {
    if (data_ && !lost_in_fork) free();
  }

  void* data() const { return data_; }

  // Marks memory that is used on an unknown stream: freeing it must wait for the whole device.
  void used_elsewhere() { elsewhere_ = true; }

 private:
  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
    std::swap(home_, other.home_);
    std::swap(elsewhere_, other.elsewhere_);
  }

  // Ignores errors: at exit the driver may be gone already, and with it the memory.
  void free() noexcept {
    try {
      DeviceGuard guard(device_);
      if (elsewhere_) cudaDeviceSynchronize();
      Heap& from = heap(device_);
      if (from.pooled) {
        cudaFreeAsync(data_, home_);
      } else {
        from.list.free(data_, bytes_, home_);
      }
    } catch (const std::exception&) {
    }
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  int device_ = 0;
  cudaStream_t home_ = nullptr;
  bool elsewhere_ = false;
};

}  // namespace airllm::cuda
