// A stand-in for NVRTC: the text becomes a library for this processor, by nvrtc_on_host.py. What a program
// asks for as machine code is that library's path.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Program {
  std::string text, library, log;
};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream all;
  all << file.rdbuf();
  return all.str();
}

const char* setting(const char* name) {
  const char* found = std::getenv(name);
  if (!found) std::fprintf(stderr, "NVRTC stand-in: %s is not set\n", name), std::abort();
  return found;
}

int copy(const std::string& from, char* to) {
  std::memcpy(to, from.c_str(), from.size() + 1);
  return 0;
}

}  // namespace

EXPORT int nvrtcCreateProgram(Program** made, const char* text, const char*, int, const char* const*,
                              const char* const*) {
  *made = new Program{text, "", ""};
  return 0;
}

EXPORT int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  if (count != 2 || std::string(options[1]) != "--gpu-architecture=sm_90")
    return 5;  // of the stand-in's devices
  const std::string folder = setting("AIRLLM_TEST_NVRTC");
  static int number = 0;
  const std::string at = folder + "/" + std::to_string(getpid()) + "-" + std::to_string(number++);
  std::ofstream(at + ".cu") << program->text;
  const std::string call =
      std::string(setting("AIRLLM_TEST_NVRTC_COMPILER")) + " " + at + ".cu >" + at + ".log 2>&1";
  const int status = std::system(call.c_str());
  program->log = contents(at + ".log");
  program->library = contents(at + ".path");
  return status == 0 ? 0 : 6;
}

EXPORT int nvrtcDestroyProgram(Program** program) {
  delete *program;
  return 0;
}

EXPORT int nvrtcGetProgramLogSize(Program* program, size_t* size) {
  *size = program->log.size() + 1;
  return 0;
}
EXPORT int nvrtcGetProgramLog(Program* program, char* log) { return copy(program->log, log); }
EXPORT int nvrtcGetCUBINSize(Program* program, size_t* size) {
  *size = program->library.size() + 1;
  return 0;
}
EXPORT int nvrtcGetCUBIN(Program* program, char* code) { return copy(program->library, code); }
EXPORT int nvrtcGetPTXSize(Program*, size_t*) { return 4; }
EXPORT int nvrtcGetPTX(Program*, char*) { return 4; }
EXPORT int nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return 0;
}
EXPORT int nvrtcGetSupportedArchs(int* archs) {
  *archs = 90;
  return 0;
}
EXPORT const char* nvrtcGetErrorString(int) { return "an error of the stand-in"; }
