// The registry's entry for a backend that C++ programs cannot use, and the rows of shipped.h.
#pragma once
#include <airllm/backend/backends.h>

#include <memory>
#include <string>
#include <utility>

namespace airllm::backend {

class AbsentBackend : public Backend {
 public:
  AbsentBackend(std::string name, std::string reason) : name_(std::move(name)), reason_(std::move(reason)) {}
  std::string get_name() const override { return name_; }
  std::string why_not() const override { return reason_; }

 private:
  std::string name_, reason_;
};

struct Shipped {
  BackendType type;
  const char *name, *in_python;  // `in_python`: what provides it in Python
  std::unique_ptr<Backend> (*make)(const Shipped&);
};

struct Alias {
  const char *alias, *name;
};

inline std::unique_ptr<Backend> make_absent(const Shipped& row) {
  const std::string in_python = row.in_python;
  return std::make_unique<AbsentBackend>(row.name, "it is reached from Python alone, as " + in_python);
}

template <class Class>
std::unique_ptr<Backend> make(const Shipped&) {
  return std::make_unique<Class>();
}

}  // namespace airllm::backend
