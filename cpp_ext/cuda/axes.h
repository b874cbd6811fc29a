// The axes of an op's arrays, declared in the words of airllm/tensor_ops.py: "... m k".
#pragma once

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "operand.h"

namespace airllm::cuda {

// What the leading axes "..." of an array after the first may be.
enum class Leading {
  equal,      // the first array's
  shared,     // those, or none: one for all
  broadcast,  // any that NumPy would broadcast to them
};

inline bool broadcasts(const Shape& shape, const Shape& to) {
  if (shape.size() > to.size()) return false;
  const size_t skipped = to.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1 && shape[i] != to[skipped + i]) return false;
  }
  return true;
}

class Axes {
 public:
  explicit Axes(const Op& op) : op_(op) {}

  // The sizes that `x` gives to its axes, or a ValueError if they contradict those of the arrays before.
  void take(const Operand& x, const char* declared, Leading leading) {
    const std::vector<std::string> names = split(declared);
    const bool open = !names.empty() && names.front() == "...";
    const size_t inner = names.size() - (open ? 1 : 0);
    const std::string expected = described(declared, names, open && x.shape.size() > inner);
    bool fits = x.shape.size() >= inner && (open || x.shape.size() == inner);
    const size_t lead = fits ? x.shape.size() - inner : 0;
    if (open && fits) fits = take_leading(x, lead, leading);
    for (size_t i = 0; i < inner && fits; ++i) {
      fits = sizes_.emplace(names[i + (open ? 1 : 0)], x.shape[lead + i]).first->second == x.shape[lead + i];
    }
    if (!fits) wrong_shape(x, expected);
  }

  // The same for a mask, whose axes are known: all but the last may be such as NumPy broadcasts.
  void take_mask(const Operand& x, const char* declared) const {
    const std::vector<std::string> names = split(declared);
    Shape full = leading;
    for (size_t i = 1; i < names.size(); ++i) full.push_back(sizes_.at(names[i]));
    const bool last = !x.shape.empty() && x.shape.back() == full.back();
    if (!last || !broadcasts(x.shape, full))
      wrong_shape(x, described(declared, names, x.shape.size() + 1 > names.size()));
  }

  // What the sizes of two axes must be to each other, as airllm/tensor_ops.py says it.
  void require(bool holds, const Operand& x, const char* declared, const char* text, const char* one,
               const char* other) const {
    if (holds) return;
    wrong_shape(x, "(" + std::string(declared) + ") with " + text + ", found " + one + "=" +
                       std::to_string(sizes_.at(one)) + ", " + other + "=" +
                       std::to_string(sizes_.at(other)));
  }

  [[noreturn]] void wrong_shape(const Operand& x, const std::string& expected) const {
    op_.wrong_value(x.name, "has shape " + tuple_text(x.shape), expected);
  }

  int64_t operator[](const char* axis) const { return sizes_.at(axis); }

  // The leading axes, and after them the named ones.
  Shape shape(std::initializer_list<const char*> axes) const {
    Shape made = leading;
    for (const char* axis : axes) made.push_back(sizes_.at(axis));
    return made;
  }

  Shape leading;  // "..." of the first array that has it

 private:
  static std::vector<std::string> split(const char* declared) {
    std::istringstream words(declared);
    std::vector<std::string> names;
    for (std::string name; words >> name;) names.push_back(name);
    return names;
  }

  bool take_leading(const Operand& x, size_t lead, Leading rule) {
    const Shape found(x.shape.begin(), x.shape.begin() + py::ssize_t(lead));
    if (!known_) {
      known_ = true;
      leading = found;
      return true;
    }
    if (rule == Leading::broadcast) return broadcasts(found, leading);
    return found == leading || (rule == Leading::shared && lead == 0);
  }

  // "(... k n) with k=4, ...=(2,)"
  std::string described(const char* declared, const std::vector<std::string>& names, bool has_leading) const {
    std::string known;
    for (const std::string& name : names) {
      const auto found = sizes_.find(name);
      if (found == sizes_.end()) continue;
      known += (known.empty() ? " with " : ", ") + name + "=" + std::to_string(found->second);
    }
    if (has_leading && known_ && !leading.empty())
      known += (known.empty() ? " with ...=" : ", ...=") + tuple_text(leading);
    return "(" + std::string(declared) + ")" + known;
  }

  Op op_;
  std::map<std::string, int64_t> sizes_;
  bool known_ = false;
};

}  // namespace airllm::cuda
