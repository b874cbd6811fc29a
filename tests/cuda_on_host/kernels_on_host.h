// Lets a C++ compiler take cpp_ext/cuda/launch/kernels.cu, its CUDA branch and launchers included, and run
// it: every CUDA thread of a block is a fiber, blocks run one after the other. Included before the .cu text.
//
// A barrier or a shuffle that not all of its threads reach stops the process: a GPU would hang or compute
// nonsense.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <ucontext.h>
#include <vector_functions.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime_on_host.h"

namespace on_host {

enum class Waits { no, for_warp, for_block, for_next_block };

struct Place {
  void* words[5];
};

struct Fiber {
  ucontext_t context{};  // where it begins
  Place place{};         // where it goes on
  std::vector<char> stack;
  Waits waits = Waits::no;
};

struct Block {
  unsigned thread = 0, block = 0, threads = 0, blocks = 0;
  bool backwards = false;
  Place scheduler{};
  std::vector<Fiber> fibers;
  std::vector<float> shuffled;
  std::function<void()> body;
};

inline Block running;  // one at a time: the runtime's lock is held

// swapcontext would ask the system for the signal mask twice, and address sanitizer clears its record of the
// whole stack there, which takes longer than the kernels. Nothing here needs either: a stack is never begun
// anew.
__attribute__((noinline, noreturn, no_sanitize_address)) inline void go_to(Place& there) {
  __builtin_longjmp(there.words, 1);
}

__attribute__((noinline, no_sanitize_address)) inline void leave(Place& here, Place& there) {
  if (__builtin_setjmp(here.words) == 0) go_to(there);
}

__attribute__((noinline, no_sanitize_address)) inline void begin(Place& here, Fiber& fiber) {
  if (__builtin_setjmp(here.words) == 0) setcontext(&fiber.context);
}

inline void yield(Waits waits) {
  Fiber& self = running.fibers[running.thread];
  self.waits = waits;
  leave(self.place, running.scheduler);
}

// A fiber is one thread of every block that runs.
inline void fiber_main() {
  for (;;) {
    running.body();
    yield(Waits::for_next_block);
  }
}

inline void run(Fiber& fiber) {
  if (!fiber.stack.empty()) return leave(running.scheduler, fiber.place);
  fiber.stack.resize(256 * 1024);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  makecontext(&fiber.context, fiber_main, 0);
  begin(running.scheduler, fiber);
}

// Runs every fiber that can run until it waits; false if there was none. Every other time the last one goes
// first: what depends on the order of threads between two barriers differs then.
inline bool run_ready() {
  bool any = false;
  running.backwards = !running.backwards;
  for (unsigned n = 0; n < running.threads; ++n) {
    const unsigned i = running.backwards ? running.threads - 1 - n : n;
    if (running.fibers[i].waits != Waits::no) continue;
    running.thread = i;
    run(running.fibers[i]);
    any = true;
  }
  return any;
}

// Lets the fibers [first, last) go on if every one of them waits for the same thing.
inline bool release(unsigned first, unsigned last, Waits what) {
  for (unsigned i = first; i < last; ++i) {
    if (running.fibers[i].waits != what) return false;
  }
  for (unsigned i = first; i < last; ++i) running.fibers[i].waits = Waits::no;
  return true;
}

inline bool release_all() {
  bool any = release(0, running.threads, Waits::for_block);
  for (unsigned warp = 0; warp < running.threads; warp += 32)
    any = release(warp, warp + 32, Waits::for_warp) || any;
  return any;
}

inline void run_block() {
  for (unsigned i = 0; i < running.threads; ++i) running.fibers[i].waits = Waits::no;
  while (run_ready() || release_all()) {
  }
  for (unsigned i = 0; i < running.threads; ++i) {
    if (running.fibers[i].waits == Waits::for_next_block) continue;
    std::fprintf(stderr, "block %u: thread %u waits at a barrier that others never reach\n", running.block,
                 i);
    std::abort();
  }
}

inline void run_grid(unsigned blocks, unsigned threads, std::function<void()> body) {
  running.blocks = blocks, running.threads = threads, running.body = std::move(body);
  if (running.fibers.size() < threads) running.fibers.resize(threads);
  running.shuffled.resize(threads);
  for (running.block = 0; running.block < blocks; ++running.block) run_block();
}

inline float shuffle_xor(float value, int lane) {
  running.shuffled[running.thread] = value;
  yield(Waits::for_warp);
  const float other = running.shuffled[running.thread ^ unsigned(lane)];
  yield(Waits::for_warp);
  return other;
}

struct Coordinate {
  unsigned x;
};

}  // namespace on_host

#define threadIdx (on_host::Coordinate{on_host::running.thread})
#define blockIdx (on_host::Coordinate{on_host::running.block})
#define blockDim (on_host::Coordinate{on_host::running.threads})
#define gridDim (on_host::Coordinate{on_host::running.blocks})
#define __syncthreads() on_host::yield(on_host::Waits::for_block)
#define __shfl_xor_sync(mask, value, lane) on_host::shuffle_xor(value, lane)
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Rounded one by one: a compiler may not make one operation of the two.
inline float __fmul_rn(float a, float b) {
  const volatile float product = a * b;
  return product;
}
inline float __fadd_rn(float a, float b) {
  const volatile float sum = a + b;
  return sum;
}

using std::isnan;

namespace on_host {

// A launch of a kernel with copies of its arguments.
template <class... Parameters>
std::function<void()> bound(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                            void** arguments) {
  size_t i = 0;
  const std::tuple<Parameters...> values{*static_cast<Parameters*>(arguments[i++])...};  // in order: braces
  return [=] { run_grid(blocks, threads, [=] { std::apply(kernel, values); }); };
}

}  // namespace on_host

// What the launchers call: the kernel goes on the stream.
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments, size_t,
                             cudaStream_t stream) {
  if (const cudaError_t code = on_host::failing("cudaLaunchKernel")) return code;
  if (!on_host::is_launchable(grid.x, block.x)) return cudaErrorInvalidConfiguration;
  return on_host::enqueue(stream, on_host::bound(kernel, grid.x, block.x, arguments));
}

// For kernels that are compiled at run time: the stand-in of the driver finds them by these names.
#define ON_HOST_KERNEL(name)                                                        \
  extern "C" __attribute__((visibility("default"))) void* on_host_bind_##name(      \
      unsigned blocks, unsigned threads, void** given) {                            \
    return new std::function<void()>(on_host::bound(name, blocks, threads, given)); \
  }
