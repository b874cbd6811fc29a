// Libraries that are loaded at run time: the module is linked to none of them and works without.
#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

namespace airllm::cuda {

// A library under one of `names`: as the process has it, in one of `folders`, or where the loader finds it.
// In this order, and that of the names; null if there is none, or `takes` refuses all.
template <class Takes>
void* load_library(const std::vector<std::string>& names, const std::vector<std::string>& folders,
                   const Takes& takes) {
  const auto open = [&](const std::string& name, int mode) -> void* {
    void* library = dlopen(name.c_str(), mode | RTLD_NOW | RTLD_LOCAL);
    if (library && takes(library, name)) return library;
    if (library) dlclose(library);
    return nullptr;
  };
  for (const std::string& name : names) {
    if (void* found = open(name, RTLD_NOLOAD)) return found;
  }
  for (const std::string& folder : folders) {
    for (const std::string& name : names) {
      if (void* found = open(folder + "/" + name, 0)) return found;
    }
  }
  for (const std::string& name : names) {
    if (void* found = open(name, 0)) return found;
  }
  return nullptr;
}

template <class Function>
bool find_function(void* library, const std::string& name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name.c_str()));
  return function != nullptr;
}

}  // namespace airllm::cuda
