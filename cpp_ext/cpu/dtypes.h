// The element types of arrays, in a file of their own that every kind of kernel's header includes.
#pragma once
#include <cstdint>

namespace cpu {

enum DType : int { kFloat32, kFloat16, kBFloat16, kDTypes, kBool = kDTypes, kMaskDTypes };

constexpr int64_t itemsize(DType dtype) { return dtype == kFloat32 ? 4 : dtype == kBool ? 1 : 2; }

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

}  // namespace cpu
