// Parses a Python call by the op's declaration (ops/table.h), for any native backend: the places of
// arguments, the parameters other than arrays, and all arguments in order. A backend adds its handling of
// arrays.
#pragma once
#include <utility>

#include "../ops/sizes.h"
#include "../ops/table.h"
#include "arguments.h"

namespace [[gnu::visibility("hidden")]] arguments {

using namespace airllm::declared;

template <const Declaration& kOp>
inline constexpr Op kNamed{kOp.name};

// The names of an op's arguments, including `out`.
template <const Declaration& kOp>
struct Names {
  const char* all[kOp.places()] = {};
  constexpr Names() {
    for (size_t i = 0; i < kOp.count; ++i) all[i] = kOp.arguments[i].name;
    if (kOp.places() > kOp.count) all[kOp.count] = "out";
  }
};
template <const Declaration& kOp>
inline constexpr Names<kOp> kNames;

// A parameter other than an array, or its default.
template <const Declaration& kOp, size_t kArgument>
auto parameter(PyObject* value) {
  constexpr const Argument& argument = kOp.arguments[kArgument];
  constexpr const Op& op = kNamed<kOp>;
  constexpr Kind kind = argument.kind;
  if constexpr (kind == Kind::positive) {
    return optional_positive(op, argument.name, value);
  } else if constexpr (kind == Kind::number && argument.may_be_none) {
    return optional_number(op, argument.name, value);
  } else if constexpr (kind == Kind::number) {
    return number(op, argument.name, value, static_cast<float>(argument.otherwise));
  } else if constexpr (kind == Kind::count) {
    return optional_count(op, argument.name, value);
  } else if constexpr (kind == Kind::flag) {
    return flag(op, argument.name, value, argument.otherwise != 0);
  } else if constexpr (kind == Kind::choice) {
    static constexpr const char* choices[] = {argument.choices[0], argument.choices[1]};
    return choice(op, argument.name, value, choices);
  } else {
    return value;
  }
}

template <size_t kArgument, class Value>
struct Slot {
  Value value;
};

// The order in which arguments are checked: those other than arrays first, as in airllm/ops/op.py.
template <const Declaration& kOp>
struct Order {
  size_t at[kOp.count] = {};
  constexpr Order() {
    size_t n = 0;
    for (const bool is_array : {false, true})
      for (size_t i = 0; i < kOp.count; ++i)
        if (kOp.arguments[i].is_array() == is_array) at[n++] = i;
  }
};
template <const Declaration& kOp>
inline constexpr Order<kOp> kOrder;

// All arguments of a call of the op `Arguments::kDeclared`; `Arguments` reads them one by one.
template <class Arguments, class Indices = std::make_index_sequence<Arguments::kDeclared.count>>
class All;

template <class Arguments, size_t kArgument>
using SlotOf = Slot<kArgument, decltype(std::declval<Arguments&>().template take<kArgument>())>;

template <class Arguments, size_t... kArgument>
class All<Arguments, std::index_sequence<kArgument...>>
    : public Arguments, SlotOf<Arguments, kOrder<Arguments::kDeclared>.at[kArgument]>... {
 public:
  All(PyObject* const* args, Py_ssize_t nargs, PyObject* keywords)
      : Arguments(args, nargs, keywords),
        SlotOf<Arguments, kOrder<Arguments::kDeclared>.at[kArgument]>{
            this->template take<kOrder<Arguments::kDeclared>.at[kArgument]>()}... {}

  template <size_t kAt>
  const auto& get() const {
    return SlotOf<Arguments, kAt>::value;
  }

  // Returns function(before..., arguments...), with the arguments in declared order.
  template <class Function, class... Before>
  auto apply(const Function& function, const Before&... before) const {
    return function(before..., get<kArgument>()...);
  }
};

}  // namespace arguments
