// Kernels that were compiled at run time: loaded and launched through the driver, which knows them by name.
#pragma once

#if !defined(__HIP_PLATFORM_AMD__)
#include <cuda.h>
#endif

#include <map>
#include <mutex>
#include <string>

#include "device.h"
#include "types.h"

namespace airllm::cuda {

// The driver's functions. Its error codes are the runtime's.
struct Driver {
#if defined(__HIP_PLATFORM_AMD__)
  using Module = hipModule_t;
  using Function = hipFunction_t;
  static constexpr auto load = hipModuleLoadData;
  static constexpr auto function = hipModuleGetFunction;
  static constexpr auto launch = hipModuleLaunchKernel;
  static const Driver& get() {
    static const Driver found;
    return found;
  }
#else
  using Module = void*;
  using Function = void*;
  cudaError_t (*load)(Module*, const void*) = nullptr;
  cudaError_t (*function)(Function*, Module, const char*) = nullptr;
  cudaError_t (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        cudaStream_t, void**, void**) = nullptr;
  cudaError_t (*add_node)(CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
                          const CUDA_KERNEL_NODE_PARAMS*) = nullptr;
  cudaError_t (*set_node)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*) = nullptr;

  static const Driver& get() {
    static const Driver found = [] {
      Driver made;
      find("cuModuleLoadData", made.load);
      find("cuModuleGetFunction", made.function);
      find("cuLaunchKernel", made.launch);
      find("cuGraphAddKernelNode", made.add_node);
      find("cuGraphExecKernelNodeSetParams", made.set_node);
      return made;
    }();
    return found;
  }

 private:
  template <class Function>
  static void find(const char* name, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult answer{};
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &answer), name);
#else
    check(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &answer), name);
#endif
    if (!found) throw std::runtime_error(std::string("the driver has no function ") + name);
    function = reinterpret_cast<Function>(found);
  }
#endif
};

// Compiled kernels on a device. They stay there until the process ends.
class Program {
 public:
  Program(std::string code, int device) : code_(std::move(code)), device_(device) {
    check(cudaSetDevice(device_), "cudaSetDevice");
    check(Driver::get().load(&module_, code_.data()), "loading compiled kernels");
  }

  Driver::Function kernel(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& found = kernels_[name];
    if (!found) {
      check(cudaSetDevice(device_), "cudaSetDevice");
      check(Driver::get().function(&found, module_, name.c_str()), name.c_str());
    }
    return found;
  }

  int device() const { return device_; }

 private:
  const std::string code_;
  const int device_;
  std::mutex mutex_;
  Driver::Module module_ = nullptr;
  std::map<std::string, Driver::Function> kernels_;
};

}  // namespace airllm::cuda
