// The C++ registry: include/airllm/backend/backends.h. A program compiles this file beside its own.
#include <airllm/backend/backends.h>

#include <algorithm>
#include <stdexcept>

#define cpu airllm_cpu  // a program's own namespace of that name is another one
#include "cpu_backend.h"

namespace airllm::backend {
namespace {

// One that C++ programs cannot use.
class AbsentBackend : public Backend {
 public:
  AbsentBackend(std::string name, std::string reason) : name_(std::move(name)), reason_(std::move(reason)) {}
  std::string get_name() const override { return name_; }
  std::string why_not() const override { return reason_; }

 private:
  std::string name_, reason_;
};

// After BackendType::CPU, as that goes on.
constexpr const char* kInPythonAlone[] = {"mlx", "webgpu", "python"};
// Other names for a backend, as Python has them in airllm/backends/shipped/.
constexpr std::pair<const char*, const char*> kAliases[] = {
    {"cpp", "cpu"}, {"openmp", "cpu"}, {"metal", "mlx"}, {"mps", "mlx"}, {"numpy", "python"}};

std::unique_ptr<Backend> in_python_alone(const std::string& name) {
  const std::string as = name == "python" ? "NumPy" : "tensor_ops_" + name;
  return std::make_unique<AbsentBackend>(name, "it is reached from Python alone, as " + as);
}

}  // namespace

int64_t row_bytes(const char* format, int64_t k) {
  const Checks checks("row_bytes");
  return checks.row_bytes(checks.format(format), k);
}

BackendRegistry::BackendRegistry() {
  for (const char* name : {"cuda", "opencl"}) backends_.push_back(in_python_alone(name));
  backends_.push_back(std::make_unique<CpuBackend>());
  for (const char* name : kInPythonAlone) backends_.push_back(in_python_alone(name));
  for (size_t i = 0; i < backends_.size(); ++i) backends_[i]->type_ = BackendType(i);
}

BackendRegistry& BackendRegistry::get_instance() {
  static BackendRegistry* const forever = new BackendRegistry;  // in use, maybe, until the very end
  return *forever;
}

std::vector<BackendType> BackendRegistry::get_backends() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<BackendType> types;
  for (const auto& backend : backends_) types.push_back(backend->get_type());
  return types;
}

std::vector<BackendType> BackendRegistry::get_available_backends() const {
  std::vector<BackendType> types = get_backends();
  const auto absent = [&](BackendType type) { return !get_backend(type)->is_available(); };
  types.erase(std::remove_if(types.begin(), types.end(), absent), types.end());
  return types;
}

Backend* BackendRegistry::get_backend(BackendType type) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto i = static_cast<size_t>(type);
  return i < backends_.size() ? backends_[i].get() : nullptr;
}

Backend* BackendRegistry::get_backend(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return find(name);
}

Backend* BackendRegistry::find(const std::string& name) const {
  if (Backend* const backend = named(name)) return backend;
  for (const auto& [alias, own] : kAliases)
    if (cpu::same_name(name, alias)) return named(own);
  return nullptr;
}

Backend* BackendRegistry::named(const std::string& name) const {
  for (const auto& backend : backends_)
    if (cpu::same_name(backend->get_name(), name)) return backend.get();
  return nullptr;
}

Backend* BackendRegistry::get_default_backend() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (default_) return default_;
  }
  std::string reasons;
  for (const BackendType type : get_backends()) {
    Backend* const backend = get_backend(type);
    const std::string why_not = backend->why_not();
    if (why_not.empty()) return backend;
    reasons += "\n  " + backend->get_name() + ": " + why_not;
  }
  throw std::runtime_error("no backend runs here:" + reasons);
}

void BackendRegistry::set_default_backend(const std::string& name) {
  Backend* const backend = get_backend(name);
  if (!backend) {
    std::string known;
    for (const BackendType type : get_backends())
      known += (known.empty() ? "" : ", ") + get_backend(type)->get_name();
    throw std::invalid_argument("set_default_backend: name has value '" + name + "', expected one of " +
                                known);
  }
  if (!backend->is_available())
    throw std::runtime_error("backend '" + name + "' cannot run here: " + backend->why_not());
  const std::lock_guard<std::mutex> lock(mutex_);
  default_ = backend;
}

BackendType BackendRegistry::add(std::unique_ptr<Backend> backend) {
  if (!backend) throw std::invalid_argument("add: backend has a null pointer, expected a Backend");
  const std::lock_guard<std::mutex> lock(mutex_);
  Backend *const before = named(backend->get_name()), *const found = find(backend->get_name());
  if (found && found->is_available())
    throw std::invalid_argument("add: name has value '" + backend->get_name() +
                                "', expected one that no available backend has");
  if (!before) backends_.emplace_back();
  backend->type_ = before ? before->get_type() : BackendType(backends_.size() - 1);
  auto& place = backends_[static_cast<size_t>(backend->type_)];
  if (before) replaced_.push_back(std::move(place));
  place = std::move(backend);
  return place->get_type();
}

namespace {

[[noreturn]] void lacks(const Backend& backend, const char* op) {
  const std::string why_not = backend.why_not();
  throw std::runtime_error("backend '" + backend.get_name() + "' " +
                           (why_not.empty() ? std::string("has no ") + op : "cannot run here: " + why_not));
}

}  // namespace

void Backend::set_num_threads(int) { lacks(*this, "set_num_threads"); }
void Backend::silu(Output, Input, int64_t) const { lacks(*this, "silu"); }
void Backend::gelu(Output, Input, int64_t, Gelu) const { lacks(*this, "gelu"); }
void Backend::swiglu(Output, Input, Input, int64_t) const { lacks(*this, "swiglu"); }
void Backend::geglu(Output, Input, Input, int64_t, Gelu) const { lacks(*this, "geglu"); }
void Backend::rms_norm(Output, Input, Input, int64_t, int64_t, float) const { lacks(*this, "rms_norm"); }
void Backend::add_rms_norm(Output, Output, Input, Input, Input, int64_t, int64_t, float) const {
  lacks(*this, "add_rms_norm");
}
void Backend::layer_norm(Output, Input, Input, Input, int64_t, int64_t, float) const {
  lacks(*this, "layer_norm");
}
void Backend::softmax(Output, Input, int64_t, int64_t, float, Input, int64_t) const {
  lacks(*this, "softmax");
}
void Backend::apply_rope(Output, Input, Input, Input, int64_t, int64_t, int64_t, int64_t, bool) const {
  lacks(*this, "apply_rope");
}
void Backend::matmul(Output, Input, Input, int64_t, int64_t, int64_t) const { lacks(*this, "matmul"); }
void Backend::linear(Output, Input, Weight, Input, int64_t, int64_t, int64_t) const {
  lacks(*this, "linear");
}
void Backend::attention(Output, Input, Input, Input, const AttentionShape&, const AttentionOptions&) const {
  lacks(*this, "attention");
}
void Backend::quantize(void*, const char*, Input, int64_t, int64_t) const { lacks(*this, "quantize"); }
void Backend::dequantize(float*, Weight, int64_t, int64_t) const { lacks(*this, "dequantize"); }

}  // namespace airllm::backend
