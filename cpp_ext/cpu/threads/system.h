// What operating systems do in different ways: aligned memory, fork, names in any case.
#pragma once
#include <cstddef>
#include <cstdlib>

#ifdef _WIN32
#include <malloc.h>
#include <string.h>
#else
#include <pthread.h>
#include <strings.h>
#endif

namespace cpu {

// Memory that free_aligned() frees; nullptr if there is none.
inline void* allocate_aligned(size_t alignment, size_t bytes) {
#ifdef _WIN32
  return _aligned_malloc(bytes, alignment);
#else
  void* data = nullptr;
  return posix_memalign(&data, alignment, bytes) ? nullptr : data;
#endif
}

inline void free_aligned(void* data) {
#ifdef _WIN32
  _aligned_free(data);
#else
  std::free(data);
#endif
}

// Calls these around each fork() of this process; Windows has none.
inline void at_fork([[maybe_unused]] void (*before)(), [[maybe_unused]] void (*in_parent)(),
                    [[maybe_unused]] void (*in_child)()) {
#ifndef _WIN32
  pthread_atfork(before, in_parent, in_child);
#endif
}

inline bool same_in_any_case(const char* a, const char* b) {
#ifdef _WIN32
  return _stricmp(a, b) == 0;
#else
  return strcasecmp(a, b) == 0;
#endif
}

}  // namespace cpu
