// The kernel text that OpenCL, CUDA and HIP share, compiled by nvcc, and the launchers of its kernels.
#include <string>

#include "launch_attention.h"
#include "launch_decode.h"
#include "launch_elements.h"
#include "launch_matmul.h"
#include "launch_rows.h"
#include "launch_stored.h"

namespace airllm::cuda {

const char* compiled_archs() {
  static const std::string text = [] {
    std::string archs;
    for (const int arch : {__CUDA_ARCH_LIST__})
      archs += (archs.empty() ? "" : ", ") + std::to_string(arch / 10);
    return archs;
  }();
  return text.c_str();
}

}  // namespace airllm::cuda
