// A stand-in for the driver's part that loads and launches kernels compiled at run time. Their "machine code"
// is the path of a library, which nvrtc_on_host.cpp has compiled.
#include <cuda.h>
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

// The work of a kernel with the values that its arguments have now.
Work bind(void* function, unsigned blocks, unsigned threads, void** arguments) {
  auto* const made =
      static_cast<std::function<void()>*>(reinterpret_cast<Bind>(function)(blocks, threads, arguments));
  const std::unique_ptr<std::function<void()>> work(made);
  return *work;
}

cudaError_t launch(void* function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned,
                   unsigned, unsigned, cudaStream_t stream, void** arguments, void**) {
  ENTER(cuLaunchKernel);
  if (y != 1 || z != 1 || !is_launchable(blocks, threads)) return cudaErrorInvalidConfiguration;
  return enqueue(stream, bind(function, blocks, threads, arguments));
}

bool is_launchable(const CUDA_KERNEL_NODE_PARAMS& of) {
  return of.gridDimY == 1 && of.gridDimZ == 1 && of.blockDimY == 1 && of.blockDimZ == 1 &&
         on_host::is_launchable(of.gridDimX, of.blockDimX);
}

Work bind(const CUDA_KERNEL_NODE_PARAMS& of) {
  return bind(of.func, of.gridDimX, of.blockDimX, of.kernelParams);
}

// A node is its place in the graph, from 1. Nodes that do not follow each other could run in any order.
cudaError_t add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                     const CUDA_KERNEL_NODE_PARAMS* given) {
  ENTER(cuGraphAddKernelNode);
  auto& nodes = *reinterpret_cast<Nodes*>(graph);
  const bool follows =
      nodes.empty() ? count == 0 : count == 1 && reinterpret_cast<std::uintptr_t>(*after) == nodes.size();
  if (!follows) stop("a node of a graph does not follow the one before");
  if (!is_launchable(*given)) return cudaErrorInvalidConfiguration;
  nodes.push_back(bind(*given));
  *node = reinterpret_cast<CUgraphNode>(nodes.size());
  return cudaSuccess;
}

// What was launched before keeps its values.
cudaError_t set_node(CUgraphExec graph, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* given) {
  ENTER(cuGraphExecKernelNodeSetParams);
  Instance& instance = *instance_of(graph);
  if (!is_launchable(*given)) return cudaErrorInvalidConfiguration;
  auto changed = std::make_shared<Nodes>(*instance);
  changed->at(reinterpret_cast<std::uintptr_t>(node) - 1) = bind(*given);
  instance = std::move(changed);
  return cudaSuccess;
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** found, unsigned,
                                                        unsigned long long,
                                                        cudaDriverEntryPointQueryResult*) {
  const std::map<std::string, void*> functions{
      {"cuModuleLoadData", reinterpret_cast<void*>(load)},
      {"cuModuleGetFunction", reinterpret_cast<void*>(find)},
      {"cuLaunchKernel", reinterpret_cast<void*>(launch)},
      {"cuGraphAddKernelNode", reinterpret_cast<void*>(add_node)},
      {"cuGraphExecKernelNodeSetParams", reinterpret_cast<void*>(set_node)}};
  *found = functions.at(symbol);
  return cudaSuccess;
}
