// What differs between NVIDIA's and AMD's GPUs outside the kernels: names in messages, and numbers.
#pragma once

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

namespace airllm::cuda {

#if defined(__HIP_PLATFORM_AMD__)

struct Vendor {
  static constexpr const char* kApi = "HIP";
  static constexpr const char* kModule = "tensor_ops_rocm";
  static constexpr const char* kDevice = "rocm:";
  static constexpr const char* kDeviceVariable = "AIRLLM_ROCM_DEVICE";
  static constexpr const char* kNoDriver =
      "no AMD driver is installed (install ROCm's driver, amdgpu; in a container, start it with --device "
      "/dev/kfd --device /dev/dri)";
  static constexpr const char* kSeeDevice =
      "see that rocminfo lists a device, that this user may open /dev/kfd, and that HIP_VISIBLE_DEVICES does "
      "not hide it";
  static constexpr const char* kBuild =
      "build for this GPU: AIRLLM_HIP_ARCHS=<its gfx name> python setup.py build_hip";
  static constexpr const char* kMatmul = "tiled (the build for AMD's GPUs calls no library)";
  static constexpr bool kHasCublas = false, kHasPtx = false;  // PTX: code that the driver compiles
  static constexpr int32_t kDlpackDevice = 10, kDlpackManaged = 10;
  static constexpr const char *kCompiler = "hipRTC", *kCompilerPrefix = "hiprtc";
  static constexpr const char* kGetCompiler = "it comes with ROCm: libhiprtc.so, or libamdhip64.so";
  static constexpr const char* kArchOption = "--offload-arch=";
  static std::vector<std::string> compilers() { return {"libhiprtc.so", "libamdhip64.so"}; }
};

inline std::string arch_of(const cudaDeviceProp& properties) { return properties.gcnArchName; }

// HIP's runtime opens this file, which the driver makes.
inline bool lacks_driver(cudaError_t code, int) {
  return code == cudaErrorNoDevice && access("/dev/kfd", F_OK) != 0;
}

inline bool is_device_memory(const cudaPointerAttributes& found) {
#if HIP_VERSION_MAJOR < 6
  return found.memoryType == cudaMemoryTypeDevice || found.isManaged;
#else
  return found.type == cudaMemoryTypeDevice || found.isManaged;
#endif
}

// "60200000" is HIP 6.2.
inline std::string version_text(int version) {
  return std::to_string(version / 10000000) + "." + std::to_string(version / 100000 % 100);
}

#else

struct Vendor {
  static constexpr const char* kApi = "CUDA";
  static constexpr const char* kModule = "tensor_ops_cuda";
  static constexpr const char* kDevice = "cuda:";
  static constexpr const char* kDeviceVariable = "AIRLLM_CUDA_DEVICE";
  static constexpr const char* kNoDriver =
      "no NVIDIA driver is installed (install NVIDIA's driver for this GPU; in a container, start it with "
      "--gpus all)";
  static constexpr const char* kSeeDevice =
      "see that nvidia-smi lists a device and that CUDA_VISIBLE_DEVICES does not hide it";
  static constexpr const char* kBuild =
      "build for this GPU: AIRLLM_CUDA_ARCHS=<its compute capability> python setup.py build_cuda";
  static constexpr const char* kMatmul = nullptr;  // as gemm.h says
  static constexpr bool kHasCublas = true, kHasPtx = true;
  static constexpr int32_t kDlpackDevice = 2, kDlpackManaged = 13;
  static constexpr const char *kCompiler = "NVRTC", *kCompilerPrefix = "nvrtc";
  static constexpr const char* kGetCompiler =
      "it comes with the CUDA toolkit, or pip install nvidia-cuda-nvrtc";
  static constexpr const char* kArchOption = "--gpu-architecture=";
  static std::vector<std::string> compilers() { return {"libnvrtc.so.13", "libnvrtc.so.12"}; }
};

// "sm_90" for compute capability 9.0
inline std::string arch_of(const cudaDeviceProp& properties) {
  return "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
}

inline bool lacks_driver(cudaError_t code, int driver) {
  return code == cudaErrorInsufficientDriver && driver == 0;
}

inline bool is_device_memory(const cudaPointerAttributes& found) {
  return found.type == cudaMemoryTypeDevice || found.type == cudaMemoryTypeManaged;
}

// "12040" is CUDA 12.4.
inline std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

#endif

}  // namespace airllm::cuda
