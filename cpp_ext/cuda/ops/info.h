// Information about this backend for Python: whether it can run, its devices, and its libraries.
#pragma once

#include <pybind11/stl.h>

#include <cstdio>
#include <string>
#include <vector>

#include "../arrays/device_array.h"
#include "gemm.h"

namespace airllm::cuda {

inline std::string gibibytes(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", double(bytes) / double(size_t(1) << 30));
  return text;
}

inline std::string capability(const DeviceFacts& facts) {
  return std::to_string(facts.major) + "." + std::to_string(facts.minor);
}

// "NVIDIA H200 (compute capability 9.0, 132 multiprocessors, 139.8 GiB)"
inline std::string device_line() {
  const DeviceFacts facts = device_facts(default_device());
  return facts.name + " (compute capability " + capability(facts) + ", " +
         std::to_string(facts.multiprocessors) + " multiprocessors, " + gibibytes(facts.total_memory) + ")";
}

inline std::vector<std::string> variants() {
  std::vector<std::string> names;
  for (int device = 0, count = require_devices(); device < count; ++device)
    names.push_back(device_name(device));
  return names;
}

inline void select(const py::object& name) {
  selected_device = name.is_none() ? -1 : parse_device(py::str(name), "select(): name");
}

// Sets the device of this thread; None: the device of all other threads.
inline void use_device(const py::object& index) {
  device_of_thread = index.is_none() ? -1 : parse_device(py::str(index), "use_device(): index");
}

// Only for the device in use: a query creates a context, which takes time and memory on the others.
inline py::object free_memory(int device) {
  if (device != default_device()) return py::none();
  DeviceGuard guard(device);
  size_t free_bytes = 0, total = 0;
  check(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  return py::int_(free_bytes);
}

inline py::dict device_info(int device) {
  const DeviceFacts facts = device_facts(device);
  py::dict info;
  info["name"] = facts.name;
  info["compute_capability"] = capability(facts);
  info["total_memory"] = facts.total_memory;
  info["free_memory"] = free_memory(device);
  info["multiprocessors"] = facts.multiprocessors;
  info["memory_pool"] = attribute(cudaDevAttrMemoryPoolsSupported, device)
                            ? "cudaMallocAsync"
                            : "free list (the device has no stream-ordered pool)";
  return info;
}

inline py::list device_infos(int count) {
  py::list devices;
  for (int device = 0; device < count; ++device) devices.append(device_info(device));
  return devices;
}

// Every device, as the fields of airllm.backends.DeviceInfo; RuntimeError with the reason if there is none.
inline py::list fields_of_devices() {
  py::list devices;
  for (int device = 0, count = require_devices(); device < count; ++device) {
    const DeviceFacts facts = device_facts(device);
    py::dict fields;
    fields["name"] = facts.name;
    fields["total_memory"] = facts.total_memory;
    fields["free_memory"] = selected_device == device ? free_memory(device) : py::object(py::none());
    fields["compute_capability"] = capability(facts);
    fields["unified_memory"] = attribute(cudaDevAttrIntegrated, device) != 0;
    fields["compute_units"] = facts.multiprocessors;
    fields["max_shared_memory"] = attribute(cudaDevAttrMaxSharedMemoryPerBlock, device);
    devices.append(fields);
  }
  return devices;
}

inline py::dict get_cuda_info() {
  std::string reason;
  const int count = device_count(reason);
  py::list devices;
  try {
    devices = device_infos(count);
  } catch (const std::runtime_error& error) {
    reason = error.what();
  }
  py::dict info;
  info["available"] = reason.empty();
  info["reason"] = reason;
  info["driver_version"] =
      driver_version() ? py::object(py::str(version_text(driver_version()))) : py::none();
  info["runtime_version"] = version_text(runtime_version());
  info["device_count"] = count;
  info["devices"] = devices;
  info["matmul"] = matmul_description();
  info["archs"] = compiled_archs();
  return info;
}

}  // namespace airllm::cuda
