// The sizes of an op's axes, learned from one array after the other, and the messages about arrays that do
// not fit. What to compare is known at compile time.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "declaration.h"

namespace airllm {
namespace [[gnu::visibility("hidden")]] declared {

using Size = std::ptrdiff_t;

// A shape in the form of a Python tuple.
inline std::string shape_text(int ndim, const Size* shape) {
  std::string text = "(";
  for (int i = 0; i < ndim; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (ndim == 1 ? ",)" : ")");
}

// A shape with its own memory, for as many axes as NumPy supports.
struct ResultShape {
  int ndim = 0;
  Size sizes[64];
};

template <const Declaration& kOp>
class Sizes {
 public:
  // Whether an array of this shape fits those before it; if it does, its sizes are known from then on. The
  // shape of the first array with leading axes must stay valid. If `repeats_last`, a mask may have one
  // element along the last axis.
  template <size_t kArgument>
  bool take(int ndim, const Size* shape, bool repeats_last = false) {
    constexpr const Argument& argument = kOp.arguments[kArgument];
    if constexpr (argument.kind == Kind::mask) {
      return fits_mask(argument.axes, ndim, shape, repeats_last);
    } else {
      constexpr int inner = argument.axes.count;
      if (argument.axes.leads ? ndim < inner : ndim != inner) return false;
      if (argument.axes.leads && !take_leading<kArgument>(ndim - inner, shape)) return false;
      return take_inner<kArgument>(shape + ndim - inner, std::make_index_sequence<inner>());
    }
  }

  // Whether the sizes that are known since this array meet the requirement.
  template <size_t kArgument>
  bool hold() const {
    constexpr const Requirement& must = kOp.requirement;
    if constexpr (kOp.required_of(kArgument)) return must.holds(sizes_[must.axis], sizes_[must.other]);
    return true;
  }

  // "(... k n) with k=4, ...=(2,)": the expected shape of an array that does not fit.
  std::string expected(size_t argument, int ndim) const {
    const Axes& axes = kOp.arguments[argument].axes;
    std::string known;
    for (size_t i = 0; i < axes.count; ++i)
      if (!kOp.binds(argument, axes.at[i])) add_size(known, axes.at[i]);
    if (axes.leads && !kOp.binds_leading(argument) && leading_count_ && ndim > int(axes.count))
      known += std::string(known.empty() ? "" : ", ") + "...=" + shape_text(leading_count_, leading_);
    return std::string(axes.text.view()) + (known.empty() ? "" : " with ") + known;
  }

  // "(... r) with 2 r at most d, found r=6, d=10": the same if hold() is false.
  std::string requirement(size_t argument) const {
    std::string found;
    add_size(found, kOp.requirement.axis);
    add_size(found, kOp.requirement.other);
    return std::string(kOp.arguments[argument].axes.text.view()) + " with " +
           std::string(kOp.requirement.text) + ", found " + found;
  }

  int64_t operator[](size_t axis) const { return sizes_[axis]; }

  int leading_count() const { return leading_count_; }
  const Size* leading() const { return leading_; }

  ResultShape shape_of_result(size_t result = 0) const {
    const Axes& axes = kOp.out[result];
    ResultShape shape;
    if (axes.leads) shape.ndim = leading_count_;
    std::copy_n(leading_, shape.ndim, shape.sizes);
    for (size_t i = 0; i < axes.count; ++i) shape.sizes[shape.ndim++] = sizes_[axes.at[i]];
    return shape;
  }

 private:
  template <size_t kArgument, size_t... kInner>
  bool take_inner(const Size* shape, std::index_sequence<kInner...>) {
    return (take_size<kArgument, kOp.arguments[kArgument].axes.at[kInner]>(shape[kInner]) && ...);
  }

  template <size_t kArgument, size_t kAxis>
  bool take_size(Size size) {
    if constexpr (kOp.binds(kArgument, kAxis)) sizes_[kAxis] = size;
    return sizes_[kAxis] == size;
  }

  template <size_t kArgument>
  bool take_leading(int count, const Size* shape) {
    constexpr const Argument& argument = kOp.arguments[kArgument];
    if constexpr (kOp.binds_leading(kArgument)) {
      leading_count_ = count;
      leading_ = shape;
      return true;
    } else if constexpr (argument.kind == Kind::own) {  // with other axes, also none: one for all
      const bool alike = count == leading_count_ && std::memcmp(shape, leading_, sizeof(Size) * count) == 0;
      return alike || (count == 0 && !(argument.axes == kOp.arguments[0].axes));
    } else {
      return count <= leading_count_ && broadcasts(count, shape, leading_ + leading_count_ - count);
    }
  }

  // It must have the last axis.
  bool fits_mask(const Axes& axes, int ndim, const Size* shape, bool repeats_last) const {
    const int inner = axes.count, full = leading_count_ + inner, own = std::min(ndim, inner);
    if (ndim > full || (!ndim && !repeats_last)) return false;
    for (int i = 1; i <= own; ++i) {
      const bool may_repeat = i > 1 || repeats_last;
      if (shape[ndim - i] != sizes_[axes.at[inner - i]] && !(may_repeat && shape[ndim - i] == 1))
        return false;
    }
    return broadcasts(ndim - own, shape, leading_ + full - ndim);
  }

  static bool broadcasts(int count, const Size* shape, const Size* to) {
    for (int i = 0; i < count; ++i)
      if (shape[i] != 1 && shape[i] != to[i]) return false;
    return true;
  }

  void add_size(std::string& text, size_t axis) const {
    text +=
        (text.empty() ? "" : ", ") + std::string(kOp.axes[axis].view()) + "=" + std::to_string(sizes_[axis]);
  }

  int64_t sizes_[kOp.axis_count ? kOp.axis_count : 1];
  int leading_count_ = 0;
  const Size* leading_ = nullptr;
};

}  // namespace declared
}  // namespace airllm
