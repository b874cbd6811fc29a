// Selects the matmul: cuBLAS if it is found, else the tiled kernel. AIRLLM_CUDA_MATMUL overrides this.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdlib>
#include <string>

#include "../runtime/cublas.h"
#include "folders.h"

namespace airllm::cuda {

namespace py = pybind11;

// Loaded on first use and never unloaded. The caller holds the GIL, which guards it.
inline Cublas& cublas() {
  static Cublas* loaded = nullptr;
  if (!loaded) loaded = new Cublas(library_folders("cublas"));
  return *loaded;
}

// cuBLAS, or null for the tiled kernel. The caller holds the GIL.
inline Cublas* chosen_cublas() {
  const char* variable = std::getenv("AIRLLM_CUDA_MATMUL");
  const std::string asked = variable ? variable : "";
  if (asked == "tiled" || !Vendor::kHasCublas) return nullptr;
  if (!asked.empty() && asked != "cublas") {
    throw std::runtime_error("AIRLLM_CUDA_MATMUL is '" + asked + "', expected 'cublas' or 'tiled'");
  }
  if (cublas().is_loaded()) return &cublas();
  if (asked == "cublas")
    throw std::runtime_error("AIRLLM_CUDA_MATMUL is 'cublas', but " + cublas().why_not());
  return nullptr;
}

// "cublas 13.1 from ..." or "tiled" with the reason.
inline std::string matmul_description() {
  if (!Vendor::kHasCublas) return Vendor::kMatmul;
  try {
    if (const Cublas* found = chosen_cublas()) return found->description();
  } catch (const std::runtime_error& error) {
    return std::string("none: ") + error.what();
  }
  const char* variable = std::getenv("AIRLLM_CUDA_MATMUL");
  return variable && *variable ? "tiled (AIRLLM_CUDA_MATMUL)" : "tiled (" + cublas().why_not() + ")";
}

}  // namespace airllm::cuda
