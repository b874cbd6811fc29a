// The CUDA devices of this machine, and which of them runs the ops on host arrays.
// Nothing here calls the driver before it is needed: importing the module starts nothing.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

#include "check.h"

namespace airllm::cuda {

// Makes a device current and restores the caller's device at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (device != before_) check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = device != before_;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// A forked child cannot use its parent's CUDA context, nor free its memory.
inline std::atomic<bool> lost_in_fork{false};

inline void note_fork_from_now_on() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { lost_in_fork = true; }); });
}

inline int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

inline int runtime_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

inline std::string why_no_devices(cudaError_t code) {
  cudaGetLastError();
  const int driver = driver_version();
  if (lacks_driver(code, driver)) {
    return Vendor::kNoDriver;
  }
  if (code == cudaErrorInsufficientDriver) {
    return std::string("the driver supports ") + Vendor::kApi + " " + version_text(driver) +
           ", this module needs " + version_text(runtime_version()) +
           " (update the driver, or build with an older toolkit)";
  }
  const std::string advice = remedy(code);
  return "cudaGetDeviceCount failed: " + describe(code) + (advice.empty() ? "" : " - " + advice);
}

// The number of devices; if there is none that can be used, `reason` is set.
inline int device_count(std::string& reason) {
  if (lost_in_fork) {
    reason = std::string(Vendor::kApi) +
             " was in use before fork(): a child cannot use it (start workers with 'spawn')";
    return 0;
  }
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    reason = why_no_devices(code == cudaSuccess ? cudaErrorNoDevice : code);
    return 0;
  }
  note_fork_from_now_on();
  return count;
}

// The number of devices; throws the reason if there is none.
inline int require_devices() {
  static std::atomic<int> known{0};
  if (known > 0 && !lost_in_fork) return known;
  std::string reason;
  const int count = device_count(reason);
  if (count == 0) throw std::runtime_error(reason);
  known = count;
  return count;
}

inline std::string device_name(int device) { return Vendor::kDevice + std::to_string(device); }

// Parses "1" or "cuda:1" as a device number. If there is no such device, it throws with `source`, the origin
// of the text.
inline int parse_device(const std::string& text, const char* source) {
  const std::string prefix = Vendor::kDevice;
  const std::string digits = text.rfind(prefix, 0) == 0 ? text.substr(prefix.size()) : text;
  const int count = require_devices();
  const bool number =
      !digits.empty() && digits.size() < 5 && digits.find_first_not_of("0123456789") == std::string::npos;
  if (number && std::stoi(digits) < count) return std::stoi(digits);
  throw std::runtime_error(std::string(source) + " is '" + text + "', expected " + device_name(0) +
                           (count > 1 ? " ... " + device_name(count - 1) : ""));
}

inline std::atomic<int> selected_device{-1};    // from select(); -1: from the environment, or the first
inline thread_local int device_of_thread = -1;  // from use_device(); -1: that of all threads

// The device that computes on NumPy arrays.
inline int default_device() {
  require_devices();
  if (device_of_thread >= 0) return device_of_thread;
  if (selected_device >= 0) return selected_device;
  const char* asked = std::getenv(Vendor::kDeviceVariable);
  return asked && *asked ? parse_device(asked, Vendor::kDeviceVariable) : 0;
}

struct DeviceFacts {
  std::string name, arch;
  int major, minor, multiprocessors;
  size_t total_memory;
};

inline int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

// Asks only the driver; creates no context on the device.
inline DeviceFacts device_facts(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return {properties.name,
          arch_of(properties),
          properties.major,
          properties.minor,
          properties.multiProcessorCount,
          properties.totalGlobalMem};
}

}  // namespace airllm::cuda
