// Reuses freed memory for results and workspaces. Fresh pages from the operating system cost two to three
// times as much as a kernel needs to fill them.
#pragma once
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "system.h"

namespace cpu {

constexpr size_t kHugePage = size_t{2} << 20, kCacheLine = 64;
constexpr size_t kLarge = size_t{128} << 10;     // minimum of a pooled result: malloc may unmap it
constexpr size_t kStep = size_t{64} << 10;       // granularity of sizes below half a huge page
constexpr size_t kMostKept = size_t{512} << 20;  // bytes in free buffers, per process
constexpr size_t kMostBuffers = 512;             // the search for a buffer is linear

struct Buffer {
  void* data;
  size_t bytes;
};

// Freed buffers, the latest last.
class Kept {
 public:
  Buffer take(size_t bytes) {
    const bool huge = bytes >= kHugePage / 2;
    const size_t step = huge ? kHugePage : kStep;
    bytes = (bytes + step - 1) / step * step;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto it = free_.rbegin(); it != free_.rend(); ++it)
        if (it->bytes == bytes) {
          const Buffer found = *it;
          free_.erase(std::next(it).base());
          total_ -= bytes;
          return found;
        }
    }
    void* const data = allocate_aligned(huge ? kHugePage : kCacheLine, bytes);
    if (!data) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (huge) madvise(data, bytes, MADV_HUGEPAGE);
#endif
    return {data, bytes};
  }

  void give(Buffer buffer) noexcept {
    if (buffer.bytes > kMostKept) return free_aligned(buffer.data);
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      free_.push_back(buffer);
    } catch (const std::bad_alloc&) {
      return free_aligned(buffer.data);
    }
    total_ += buffer.bytes;
    while (total_ > kMostKept || free_.size() > kMostBuffers) drop_oldest();
  }

  size_t release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t total = total_;
    while (!free_.empty()) drop_oldest();
    return total;
  }

  // Around fork(): a child must not inherit the lock held by a thread that it does not have.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void drop_oldest() {
    free_aligned(free_.front().data);
    total_ -= free_.front().bytes;
    free_.erase(free_.begin());
  }

  std::mutex mutex_;
  std::vector<Buffer> free_;
  size_t total_ = 0;  // bytes in free_
};

inline Kept& kept_buffers() {
  static Kept* const forever = new Kept;  // arrays may outlive static destruction
  return *forever;
}

inline void keep_through_fork() {
  const auto unlock = [] { kept_buffers().unlock(); };
  at_fork([] { kept_buffers().lock(); }, unlock, unlock);
}

// Memory that a kernel needs while it runs.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : buffer_(kept_buffers().take(bytes)) {}
  ~Workspace() { kept_buffers().give(buffer_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  char* data() const { return static_cast<char*>(buffer_.data); }

 private:
  Buffer buffer_;
};

}  // namespace cpu
