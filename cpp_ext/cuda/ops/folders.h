// Where Python, conda and toolkits have libraries that are loaded at run time.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace airllm::cuda {

namespace py = pybind11;

inline void add_folder(std::vector<std::string>& folders, const char* variable, const char* below) {
  const char* root = std::getenv(variable);
  if (root && *root) folders.push_back(std::string(root) + below);
}

// The folders of a library of NVIDIA or AMD; PyTorch and CuPy install pip's. `name` is that of its package in
// nvidia/, for releases that had one for each library.
inline std::vector<std::string> library_folders(const std::string& name) {
  std::vector<std::string> folders;
  const py::module_ sys = py::module_::import("sys");
  for (const py::handle entry : sys.attr("path")) {
    if (!py::isinstance<py::str>(entry) || py::len(entry) == 0) continue;
    const std::string folder = py::str(entry);
    folders.push_back(folder + "/nvidia/cu13/lib");
    folders.push_back(folder + "/nvidia/" + name + "/lib");
  }
  folders.push_back(std::string(py::str(sys.attr("prefix"))) + "/lib");
  for (const char* variable : {"CUDA_PATH", "CUDA_HOME", "ROCM_PATH"}) {
    add_folder(folders, variable, "/lib64");
    add_folder(folders, variable, "/lib");
  }
  return folders;
}

}  // namespace airllm::cuda
