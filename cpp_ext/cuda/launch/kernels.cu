// The kernel sources that OpenCL, CUDA and HIP share, compiled by nvcc or hipcc, and their launchers.
#include <string>

#include "attention.h"
#include "decode.h"
#include "elements.h"
#include "matmul.h"
#include "rows.h"
#include "stored.h"

namespace airllm::cuda {

#if defined(AIRLLM_HIP_ARCHS)

const char* compiled_archs() { return AIRLLM_HIP_ARCHS; }

#else

const char* compiled_archs() {
  static const std::string text = [] {
    std::string archs;
    for (const int arch : {__CUDA_ARCH_LIST__})
      archs += (archs.empty() ? "" : ", ") + std::to_string(arch / 10);
    return archs;
  }();
  return text.c_str();
}

#endif

}  // namespace airllm::cuda
