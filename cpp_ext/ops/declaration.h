// The declaration of an op, parsed from its text at compile time. The text is the declaration of
// airllm/tensor_ops.py in one line:
//
//   rms_norm(x: '... d', weight: 'd', eps: float = 1e-06) -> '... d'
//
// airllm/ops/operands.py and airllm/ops/parameters.py define its words. A text with other words does not
// compile.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace airllm {
namespace [[gnu::visibility("hidden")]] declared {

// Characters up to a zero.
template <size_t kMost>
struct Text {
  char characters[kMost + 1] = {};
  size_t size = 0;

  constexpr Text() = default;
  constexpr Text(std::string_view from) { *this += from; }
  constexpr Text& operator+=(std::string_view more) {
    for (const char c : more) {
      if (size == kMost) throw "the text is longer than it may be";
      characters[size++] = c;
    }
    return *this;
  }
  constexpr std::string_view view() const { return {characters, size}; }
  constexpr operator const char*() const { return characters; }
};
using Name = Text<23>;

// The kind of an argument. Arrays come first: is_array() below.
enum class Kind {
  own,
  any_float,
  mask,
  stored,
  quantized,
  index,
  number,
  positive,
  count,
  flag,
  choice,
  word
};

// The axes of an array, as indices into those of its declaration.
struct Axes {
  bool leads = false;  // "...": any number of axes before these
  size_t count = 0;
  size_t at[3] = {};
  Name text;  // "(... d)"

  constexpr bool is_vector() const { return count == 1 && !leads; }
  constexpr bool has(size_t axis) const {
    for (size_t i = 0; i < count; ++i)
      if (at[i] == axis) return true;
    return false;
  }
  constexpr bool operator==(const Axes& other) const { return text.view() == other.text.view(); }
};

struct Argument {
  Name name;
  Kind kind = Kind::own;
  Axes axes;                      // of an array
  Name of;                        // the axis whose size bounds an index
  bool may_be_none = false;       // None omits it
  std::string_view default_text;  // "" if there is none
  double otherwise = 0;           // the default of a number or a flag
  Name choices[2];                // the first one is the default

  constexpr bool is_array() const { return kind <= Kind::index; }
  constexpr bool is_required() const { return default_text.empty(); }
};

// A requirement on the sizes of two axes: "2 r at most d", "h a multiple of g".
struct Requirement {
  std::string_view text;  // "" if there is none
  int64_t times = 1;
  size_t axis = 0, other = 0;
  bool is_multiple = false;

  constexpr bool holds(int64_t size, int64_t other_size) const {
    if (!is_multiple) return times * size <= other_size;
    return size == other_size || (other_size && size % other_size == 0);
  }
};

struct Declaration {
  std::string_view text;
  Name name;
  size_t count = 0, required = 0;
  Argument arguments[9];
  size_t axis_count = 0;
  Name axes[6];
  size_t outs = 0;
  Axes out[2];
  bool gives_quantized = false;  // so it has no `out=`
  Requirement requirement;

  // Including `out`.
  constexpr size_t places() const { return count + !gives_quantized; }

  constexpr size_t arrays() const {
    size_t found = 0;
    for (size_t i = 0; i < count; ++i) found += arguments[i].is_array();
    return found;
  }

  // The array whose dtype the result has: the first of the op's own arrays, else a stored one.
  constexpr size_t first() const {
    for (const Kind kind : {Kind::own, Kind::stored, Kind::quantized})
      for (size_t i = 0; i < count; ++i)
        if (arguments[i].kind == kind) return i;
    throw "an op has an array of its own, or a stored one";
  }

  constexpr bool has_axis(std::string_view of_name) const {
    for (size_t i = 0; i < axis_count; ++i)
      if (axes[i].view() == of_name) return true;
    return false;
  }
  constexpr size_t axis(std::string_view of_name) const {
    for (size_t i = 0; i < axis_count; ++i)
      if (axes[i].view() == of_name) return i;
    throw "no array has this axis";
  }

  // Whether this argument is the first one that has an axis.
  constexpr bool binds(size_t argument, size_t axis) const {
    for (size_t i = 0; i < argument; ++i)
      if (arguments[i].is_array() && arguments[i].axes.has(axis)) return false;
    return true;
  }

  // Whether this array is the one whose leading axes all arrays have.
  constexpr bool binds_leading(size_t argument) const {
    for (size_t i = 0; i < argument; ++i)
      if (arguments[i].is_array() && arguments[i].axes.leads) return false;
    return arguments[argument].axes.leads;
  }

  // Whether a result may be exactly this argument.
  constexpr bool in_place(size_t argument, size_t result = 0) const {
    return arguments[argument].kind == Kind::own && arguments[argument].axes == out[result];
  }

  // Whether to check the requirement at this array: the first one at which both sizes are known.
  constexpr bool required_of(size_t argument) const {
    if (requirement.text.empty()) return false;
    const Axes& axes = arguments[argument].axes;
    const bool here = axes.has(requirement.axis) || axes.has(requirement.other);
    const auto known = [&](size_t axis) { return axes.has(axis) || !binds(argument, axis); };
    const bool before = !binds(argument, requirement.axis) && !binds(argument, requirement.other);
    return here && !before && known(requirement.axis) && known(requirement.other);
  }
};

// Reads a text from start to end.
class Reader {
 public:
  constexpr explicit Reader(std::string_view text) : left_(text) {}

  constexpr bool is_at_end() const { return left_.empty(); }
  constexpr bool take(std::string_view word) {
    if (left_.substr(0, word.size()) != word) return false;
    left_.remove_prefix(word.size());
    return true;
  }
  constexpr void expect(std::string_view word) {
    if (!take(word)) throw "the declaration has another text here than it must have";
  }
  constexpr std::string_view name() {
    size_t n = 0;
    while (n < left_.size() && is_of_name(left_[n])) ++n;
    if (!n) throw "expected a name";
    return cut(n);
  }
  constexpr std::string_view quoted() {
    expect("'");
    const std::string_view text = until('\'');
    expect("'");
    return text;
  }
  constexpr std::string_view until(char end) {
    size_t n = 0;
    while (n < left_.size() && left_[n] != end) ++n;
    return cut(n);
  }
  constexpr int64_t digits() {
    int64_t value = 0;
    while (!left_.empty() && left_[0] >= '0' && left_[0] <= '9') value = value * 10 + (cut(1)[0] - '0');
    return value;
  }
  // "1e-06", correctly rounded: such few digits and small powers of ten are exact.
  constexpr double number() {
    double value = double(digits()), power = 1;
    int64_t zeros = 0;
    if (take(".")) zeros = digits();
    if (zeros) throw "a fraction is written with an exponent";
    if (!take("e")) return value;
    const bool is_small = take("-");
    for (int64_t i = digits(); i > 0; --i) power *= 10;
    return is_small ? value / power : value * power;
  }
  constexpr std::string_view left() const { return left_; }

 private:
  static constexpr bool is_of_name(char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }
  constexpr std::string_view cut(size_t n) {
    const std::string_view head = left_.substr(0, n);
    left_.remove_prefix(n);
    return head;
  }

  std::string_view left_;
};

// "... m? k": kernels also get the axes that a vector lacks.
constexpr Axes read_axes(Declaration& op, std::string_view text, bool may_be_new) {
  Axes axes;
  Reader reader(text);
  axes.text += "(";
  while (!reader.is_at_end() && !reader.take(" :")) {
    if (axes.text.size > 1) {
      reader.expect(" ");
      axes.text += " ";
    }
    if (reader.take("...")) {
      axes.leads = true;
      axes.text += "...";
      continue;
    }
    const std::string_view name = reader.name();
    reader.take("?");
    if (may_be_new && !op.has_axis(name)) op.axes[op.axis_count++] = Name(name);
    axes.at[axes.count++] = op.axis(name);
    axes.text += name;
  }
  axes.text += ")";
  return axes;
}

// "... r : any float"
constexpr void read_array(Declaration& op, Argument& array, std::string_view text) {
  array.axes = read_axes(op, text, true);
  const size_t colon = text.find(" : ");
  Reader kind(colon == text.npos ? "" : text.substr(colon + 3));
  if (kind.is_at_end()) return;
  if (kind.take("any float"))
    array.kind = Kind::any_float;
  else if (kind.take("mask"))
    array.kind = Kind::mask;
  else if (kind.take("stored"))
    array.kind = Kind::stored;
  else if (kind.take("quantized"))
    array.kind = Kind::quantized;
  else if (kind.take("index of ")) {
    array.kind = Kind::index;
    array.of = Name(kind.name());
  }
  if (!kind.is_at_end() || array.kind == Kind::own) throw "no native backend has arrays of this kind";
}

// "float | None", "Literal['tanh', 'none']"
constexpr void read_kind(Reader& reader, Argument& parameter) {
  if (reader.take("Literal[")) {
    parameter.kind = Kind::choice;
    parameter.choices[0] = Name(reader.quoted());
    reader.expect(", ");
    parameter.choices[1] = Name(reader.quoted());
    return reader.expect("]");
  }
  constexpr struct {
    std::string_view word;
    Kind kind;
  } known[] = {{"float | None", Kind::number}, {"float", Kind::number}, {"Positive | None", Kind::positive},
               {"int | None", Kind::count},    {"bool", Kind::flag},    {"str", Kind::word}};
  for (const auto& [word, kind] : known) {
    if (!reader.take(word)) continue;
    parameter.kind = kind;
    parameter.may_be_none = word.back() == 'e';
    return;
  }
  throw "no native backend has parameters of this type";
}

constexpr void read_default(Reader& reader, Argument& argument) {
  const std::string_view from = reader.left();
  if (reader.take("None")) {
    if (!argument.is_array() && !argument.may_be_none) throw "a default of None is for what may be None";
    argument.may_be_none = true;
  } else if (argument.kind == Kind::choice) {
    if (reader.quoted() != argument.choices[0].view()) throw "the first choice is the default";
  } else if (argument.kind == Kind::flag) {
    argument.otherwise = reader.take("True") ? 1 : (reader.expect("False"), 0);
  } else if (argument.kind == Kind::number && !argument.may_be_none) {
    argument.otherwise = reader.number();
  } else {
    throw "no native backend has parameters with such a default";
  }
  argument.default_text = from.substr(0, from.size() - reader.left().size());
}

constexpr void read_argument(Declaration& op, Reader& reader) {
  Argument& argument = op.arguments[op.count];
  argument.name = Name(reader.name());
  reader.expect(": ");
  if (reader.left()[0] == '\'')
    read_array(op, argument, reader.quoted());
  else
    read_kind(reader, argument);
  if (reader.take(" = "))
    read_default(reader, argument);
  else if (op.required++ < op.count)
    throw "what must be given comes before what need not be";
  ++op.count;
}

// "'... n'", or "'... k : quantized'"
constexpr void read_result(Declaration& op, Reader& reader) {
  const std::string_view text = reader.quoted();
  op.gives_quantized = text.find(" : quantized") != text.npos;
  op.out[op.outs++] = read_axes(op, text, false);
}

// "2 r at most d", "h a multiple of g"
constexpr void read_requirement(Declaration& op, Reader& reader) {
  Requirement& requirement = op.requirement;
  requirement.text = reader.left();
  if (const int64_t times = reader.digits()) {
    requirement.times = times;
    reader.expect(" ");
  }
  requirement.axis = op.axis(reader.name());
  requirement.is_multiple = reader.take(" a multiple of ");
  if (!requirement.is_multiple) reader.expect(" at most ");
  requirement.other = op.axis(reader.name());
}

constexpr Declaration declare(std::string_view text) {
  Declaration op;
  Reader reader(op.text = text);
  op.name = Name(reader.name());
  reader.expect("(");
  do read_argument(op, reader);
  while (reader.take(", "));
  reader.expect(") -> ");
  const bool has_several = reader.take("(");
  do read_result(op, reader);
  while (has_several && reader.take(", "));
  if (has_several) reader.expect(")");
  if (reader.take(" where ")) read_requirement(op, reader);
  if (!reader.is_at_end()) throw "the declaration goes on after its end";
  return op;
}

// The text of Python's help(): the signature as inspect.signature() parses it, and the declaration.
constexpr Text<800> documentation(const Declaration& op) {
  Text<800> text;
  text += op.name.view();
  text += "($module";
  for (size_t i = 0; i < op.count; ++i) {
    text += ", ";
    text += op.arguments[i].name.view();
    if (op.arguments[i].is_required()) continue;
    text += "=";
    text += op.arguments[i].default_text;
  }
  text += op.gives_quantized ? ")\n--\n\n" : ", *, out=None)\n--\n\n";
  text += op.text;
  return text;
}

}  // namespace declared
}  // namespace airllm
