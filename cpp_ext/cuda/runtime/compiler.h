// Compiles kernels at run time: NVRTC for CUDA, hipRTC for HIP, loaded when first needed.
//
// Their functions have the same names and arguments, but for the prefix. They are declared below, so that the
// build machine does not need their headers.
#pragma once

#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "libraries.h"
#include "vendor.h"

namespace airllm::cuda {

// A text that does not compile, or no compiler. The message has the compiler's log.
class CompileError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Compiler {
 public:
  // `folders`: where to look besides the process itself and the system's loader path.
  explicit Compiler(const std::vector<std::string>& folders) {
    const auto names = Vendor::compilers();
    load_library(names, folders, [this](void* library, const std::string&) { return find(library); });
    if (!create_)
      why_not_ = std::string("no ") + names.front() + " was found, which compiles the kernels of models (" +
                 Vendor::kGetCompiler + ")";
  }

  // Why nothing can be compiled; "" if something can.
  const std::string& why_not() const { return why_not_; }

  // The machine code of a text for an architecture, such as "sm_90" or "gfx90a". For a GPU that is newer than
  // the compiler, code that the driver compiles.
  std::string compile(const std::string& text, const std::string& arch) const {
    if (!why_not_.empty()) throw CompileError(why_not_);
    std::lock_guard<std::mutex> lock(mutex_);
    std::string code, log;
    int status = compile_for(text, Vendor::kArchOption + arch, code, log);
    if (status == kInvalidOption && Vendor::kHasPtx) status = compile_for(text, newest(), code, log);
    if (status != 0)
      throw CompileError(std::string(Vendor::kCompiler) + " does not compile the kernels for " + arch + ": " +
                         error_text_(status) + (log.empty() ? "" : "\n" + log));
    return code;
  }

 private:
  using Handle = void*;
  static constexpr int kInvalidOption = 5;

  bool find(void* library) {
    const auto named = [&](const char* name, auto& function) {
      return find_function(library, std::string(Vendor::kCompilerPrefix) + name, function);
    };
    const bool alike = named("CompileProgram", compile_) && named("DestroyProgram", destroy_) &&
                       named("GetProgramLogSize", log_size_) && named("GetProgramLog", log_) &&
                       named("GetErrorString", error_text_) && named("CreateProgram", create_);
    const bool own = Vendor::kHasPtx ? named("GetCUBINSize", code_size_) && named("GetCUBIN", code_) &&
                                           named("GetPTXSize", ptx_size_) && named("GetPTX", ptx_) &&
                                           named("GetNumSupportedArchs", arch_count_) &&
                                           named("GetSupportedArchs", archs_)
                                     : named("GetCodeSize", code_size_) && named("GetCode", code_);
    if (!alike || !own) create_ = nullptr;
    return alike && own;
  }

  // The option for PTX of the newest architecture that the compiler knows.
  std::string newest() const {
    int count = 0;
    std::vector<int> known(arch_count_(&count) == 0 ? size_t(count) : 0);
    if (known.empty() || archs_(known.data()) != 0) return std::string(Vendor::kArchOption) + "compute_75";
    return "--gpu-architecture=compute_" + std::to_string(known.back());
  }

  int compile_for(const std::string& text, const std::string& arch, std::string& code,
                  std::string& log) const {
    Handle program = nullptr;
    int status = create_(&program, text.c_str(), "airllm.cu", 0, nullptr, nullptr);
    if (status != 0) return status;
    const char* options[] = {"--std=c++17", arch.c_str()};
    status = compile_(program, 2, options);
    if (status != 0) read(program, log_size_, log_, log);
    const bool ptx = arch.find("compute_") != std::string::npos;
    if (status == 0)
      status = ptx ? read(program, ptx_size_, ptx_, code) : read(program, code_size_, code_, code);
    destroy_(&program);
    return status;
  }

  using Size = int (*)(Handle, size_t*);
  using Read = int (*)(Handle, char*);

  static int read(Handle program, Size size_of, Read read_into, std::string& out) {
    size_t size = 0;
    const int status = size_of(program, &size);
    out.resize(size);
    return status != 0 || size == 0 ? status : read_into(program, out.data());
  }

  mutable std::mutex mutex_;
  std::string why_not_;
  int (*create_)(Handle*, const char* text, const char* name, int, const char* const*,
                 const char* const*) = nullptr;
  int (*compile_)(Handle, int count, const char* const* options) = nullptr;
  int (*destroy_)(Handle*) = nullptr;
  int (*arch_count_)(int*) = nullptr;
  int (*archs_)(int*) = nullptr;
  const char* (*error_text_)(int) = nullptr;
  Size log_size_ = nullptr, code_size_ = nullptr, ptx_size_ = nullptr;
  Read log_ = nullptr, code_ = nullptr, ptx_ = nullptr;
};

}  // namespace airllm::cuda
