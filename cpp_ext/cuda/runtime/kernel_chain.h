// Kernels that are launched one after the other, again and again, with other numbers among their arguments.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "check.h"
#include "program.h"

namespace airllm::cuda {

using Value = std::array<char, 8>;  // of an argument, from its first byte on

struct BoundLaunch {
  Driver::Function kernel;
  unsigned groups, group;
  std::vector<Value> values;

  std::vector<void*> arguments() {
    std::vector<void*> pointers;
    for (Value& value : values) pointers.push_back(value.data());
    return pointers;
  }

  void start(cudaStream_t stream) {
    check(Driver::get().launch(kernel, groups, 1, 1, group, 1, 1, 0, stream, arguments().data(), nullptr),
          "the launch of a kernel");
    ++kernels_launched;
  }
};

#if defined(__HIP_PLATFORM_AMD__)

// HIP does not say whether its graphs take kernels that were compiled at run time: each is launched.
class KernelChain {
 public:
  explicit KernelChain(std::vector<BoundLaunch> launches) : launches_(std::move(launches)) {}

  void set(size_t launch, size_t argument, const Value& value) { launches_[launch].values[argument] = value; }
  void launch(cudaStream_t stream) {
    for (BoundLaunch& each : launches_) each.start(stream);
  }

 private:
  std::vector<BoundLaunch> launches_;
};

#else

// A CUDA graph: one launch of it launches all of them.
class KernelChain {
 public:
  explicit KernelChain(std::vector<BoundLaunch> launches) : launches_(std::move(launches)) {
    cudaGraph_t graph = nullptr;
    check(cudaGraphCreate(&graph, 0), "cudaGraphCreate");
    cudaError_t code = add_all(graph);
    if (code == cudaSuccess) code = cudaGraphInstantiateWithFlags(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(code, "making a graph of kernels");
  }
  ~KernelChain() {
    if (!lost_in_fork) cudaGraphExecDestroy(graph_);
  }
  KernelChain(const KernelChain&) = delete;
  KernelChain& operator=(const KernelChain&) = delete;

  // Another value of an argument, for launches from now on: those that wait or run keep theirs.
  void set(size_t launch, size_t argument, const Value& value) {
    launches_[launch].values[argument] = value;
    with_parameters(launches_[launch], [&](const CUDA_KERNEL_NODE_PARAMS& found) {
      check(Driver::get().set_node(graph_, nodes_[launch], &found), "changing a graph's kernel");
      return cudaSuccess;
    });
  }

  void launch(cudaStream_t stream) const {
    check(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch");
    ++kernels_launched;
  }

 private:
  cudaError_t add_all(cudaGraph_t graph) {
    for (BoundLaunch& each : launches_) {
      CUgraphNode node = nullptr;
      const cudaError_t code = with_parameters(each, [&](const CUDA_KERNEL_NODE_PARAMS& found) {
        return Driver::get().add_node(&node, graph, nodes_.empty() ? nullptr : &nodes_.back(),
                                      nodes_.empty() ? 0 : 1, &found);
      });
      if (code != cudaSuccess) return code;
      nodes_.push_back(node);
    }
    return cudaSuccess;
  }

  template <class Use>
  static cudaError_t with_parameters(BoundLaunch& of, const Use& use) {
    std::vector<void*> arguments = of.arguments();
    CUDA_KERNEL_NODE_PARAMS found{};
    found.func = static_cast<CUfunction>(of.kernel);
    found.gridDimX = of.groups;
    found.blockDimX = of.group;
    found.gridDimY = found.gridDimZ = found.blockDimY = found.blockDimZ = 1;
    found.kernelParams = arguments.data();
    return use(found);
  }

  std::vector<BoundLaunch> launches_;
  std::vector<CUgraphNode> nodes_;
  cudaGraphExec_t graph_ = nullptr;
};

#endif

}  // namespace airllm::cuda
