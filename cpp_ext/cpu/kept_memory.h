// Memory for results and for the time of a kernel, kept when freed. Fresh pages from the operating system
// cost two to three times what a kernel needs to fill them.
#pragma once
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace cpu {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLarge = size_t{1} << 20;       // from here on a buffer is kept
constexpr size_t kMostKept = size_t{512} << 20;  // bytes in free buffers, for the process

struct Buffer {
  void* data;
  size_t bytes;
};

// Freed buffers, the latest last.
class Kept {
 public:
  Buffer take(size_t bytes) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto it = free_.rbegin(); it != free_.rend(); ++it)
        if (it->bytes == bytes) {
          const Buffer found = *it;
          free_.erase(std::next(it).base());
          return found;
        }
    }
    void* data = nullptr;
    if (posix_memalign(&data, kHugePage, bytes)) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(data, bytes, MADV_HUGEPAGE);
#endif
    return {data, bytes};
  }

  void give(Buffer buffer) noexcept {
    if (buffer.bytes > kMostKept) return std::free(buffer.data);
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      free_.push_back(buffer);
    } catch (const std::bad_alloc&) {
      return std::free(buffer.data);
    }
    size_t total = 0;
    for (const Buffer& b : free_) total += b.bytes;
    while (total > kMostKept) total -= drop_oldest();
  }

  size_t release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t total = 0;
    while (!free_.empty()) total += drop_oldest();
    return total;
  }

  // A child of a fork must not find the lock held by a thread that it does not have.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  size_t drop_oldest() {
    const Buffer oldest = free_.front();
    std::free(oldest.data);
    free_.erase(free_.begin());
    return oldest.bytes;
  }

  std::mutex mutex_;
  std::vector<Buffer> free_;
};

inline Kept& kept() {
  static Kept* const forever = new Kept;  // arrays may outlive static destruction
  return *forever;
}

inline void keep_through_fork() {
  const auto unlock = [] { kept().unlock(); };
  pthread_atfork([] { kept().lock(); }, unlock, unlock);
}

// Memory for the time of a kernel.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : buffer_(kept().take(bytes)) {}
  ~Workspace() { kept().give(buffer_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  char* data() const { return static_cast<char*>(buffer_.data); }

 private:
  Buffer buffer_;
};

}  // namespace cpu
