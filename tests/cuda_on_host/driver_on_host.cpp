// A stand-in for the driver's part that loads and launches kernels compiled at run time. Their "machine code"
// is the path of a library, which nvrtc_on_host.cpp has compiled.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include "state_on_host.h"

using namespace on_host;

namespace {

using Bind = void* (*)(unsigned blocks, unsigned threads, void** arguments);

cudaError_t load(void** module, const void* image) {
  ENTER(cuModuleLoadData);
  *module = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  if (!*module) stop(dlerror());
  return cudaSuccess;
}

cudaError_t find(void** function, void* module, const char* name) {
  ENTER(cuModuleGetFunction);
  *function = dlsym(module, (std::string("on_host_bind_") + name).c_str());
  return *function ? cudaSuccess : set(cudaErrorSymbolNotFound);
}

cudaError_t launch(void* function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned,
                   unsigned, unsigned, cudaStream_t stream, void** arguments, void**) {
  ENTER(cuLaunchKernel);
  if (y != 1 || z != 1 || !is_launchable(blocks, threads)) return cudaErrorInvalidConfiguration;
  auto* const made =
      static_cast<std::function<void()>*>(reinterpret_cast<Bind>(function)(blocks, threads, arguments));
  const std::unique_ptr<std::function<void()>> work(made);
  return enqueue(stream, *work);
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** found, unsigned,
                                                        unsigned long long,
                                                        cudaDriverEntryPointQueryResult*) {
  const std::map<std::string, void*> functions{{"cuModuleLoadData", reinterpret_cast<void*>(load)},
                                               {"cuModuleGetFunction", reinterpret_cast<void*>(find)},
                                               {"cuLaunchKernel", reinterpret_cast<void*>(launch)}};
  *found = functions.at(symbol);
  return cudaSuccess;
}
