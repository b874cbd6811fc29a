// The memory layout of DLPack's structures, versions 0.x ("dltensor") and 1.x ("dltensor_versioned"), with
// which two libraries in one process exchange arrays.
#pragma once

#include <cstdint>

#include "../runtime/vendor.h"

namespace airllm::cuda::dlpack {

enum DeviceType : int32_t { kCuda = Vendor::kDlpackDevice, kCudaManaged = Vendor::kDlpackManaged };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct Device {
  int32_t type;
  int32_t id;
};

struct Type {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  Type type;
  int64_t* shape;
  int64_t* strides;  // in elements; null means C-contiguous
  uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

constexpr uint64_t kReadOnly = 1;

struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};

constexpr const char* kName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

}  // namespace airllm::cuda::dlpack
