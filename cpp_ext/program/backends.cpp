// The C++ registry: include/airllm/backend/backends.h. A program compiles this file together with its own.
#include <airllm/backend/backends.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#define cpu airllm_cpu  // a program may have its own namespace `cpu`
#include "shipped.h"

namespace airllm::backend {

int64_t row_bytes(const char* format, int64_t k) {
  const Checks checks("row_bytes");
  return checks.row_bytes(checks.format(format), k);
}

BackendRegistry::BackendRegistry() {
  for (const Shipped& each : kShipped) {
    backends_.push_back(each.make(each));
    backends_.back()->type_ = each.type;
  }
}

BackendRegistry& BackendRegistry::get_instance() {
  static BackendRegistry* const forever = new BackendRegistry;  // may be in use until the process ends
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
  for (const auto& backend : backends_)
    if (backend->get_type() == type) return backend.get();
  return nullptr;
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
  const std::string name = backend->get_name();
  const Backend* const found = find(name);
  if (found && found->is_available())
    throw std::invalid_argument("add: name has value '" + name +
                                "', expected one that no available backend has");
  const auto has_it = [&](const auto& each) { return cpu::same_name(each->get_name(), name); };
  const auto place = std::find_if(backends_.begin(), backends_.end(), has_it);
  if (place == backends_.end()) {
    backend->type_ = BackendType(static_cast<int>(backends_.back()->get_type()) + 1);
    return backends_.emplace_back(std::move(backend))->get_type();
  }
  backend->type_ = (*place)->get_type();
  replaced_.push_back(std::exchange(*place, std::move(backend)));
  return (*place)->get_type();
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
