// Runs an op called from Python: its arrays and results follow from its declaration (ops/table.h). For each
// op this backend needs only a function that runs the kernel; its parameters are the op's results and
// arguments in declared order.
#pragma once
#include "../declared_call.h"
#include "formats.h"

namespace [[gnu::visibility("hidden")]] ops {

// Whether the kernel takes the op's own arrays, masks and results with any strides, if the last axis is
// contiguous, and a mask with one element along it.
template <const Declaration& kOp>
inline constexpr bool kTakesStrides = false;

struct Dimensions {
  int count;
  const Size* sizes;
};
inline Dimensions dimensions(const Array& a) { return {a.ndim, a.shape}; }
inline Dimensions dimensions(const Stored& a) { return {a.ndim, a.shape.data()}; }
inline Dimensions dimensions(const Ids& a) { return dimensions(a.array); }

inline const Array& memory(const Array& a) { return a; }
inline const Array& memory(const Stored& a) { return a.array; }
inline const Array& memory(const Ids& a) { return a.array; }

// The arguments of a call, read in their order.
template <const Declaration& kOp>
class Arguments {
 public:
  static constexpr const Declaration& kDeclared = kOp;

  Arguments(PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    place(kNamed<kOp>, values_, kNames<kOp>.all, kOp.count, kOp.required, args, nargs, keywords);
  }

  template <size_t kArgument>
  auto take() {
    PyObject* const value = values_[kArgument];
    if constexpr (!kOp.arguments[kArgument].is_array())
      return parameter<kOp, kArgument>(value);
    else if constexpr (kOp.arguments[kArgument].may_be_none)
      return present(value) ? read_fitting<kArgument>(value) : decltype(read_fitting<kArgument>(value))();
    else
      return read_fitting<kArgument>(value);
  }

  PyObject* out() const { return values_[kOp.count]; }
  const Sizes<kOp>& sizes() const { return sizes_; }

 private:
  template <size_t kArgument>
  auto read_fitting(PyObject* value) {
    constexpr const Name& name = kOp.arguments[kArgument].name;
    auto array = read<kArgument>(value);
    const auto [count, sizes] = dimensions(array);
    if (!sizes_.template take<kArgument>(count, sizes, kTakesStrides<kOp>))
      wrong_shape(name, dimensions(array), sizes_.expected(kArgument, count));
    if (!sizes_.template hold<kArgument>())
      wrong_shape(name, dimensions(array), sizes_.requirement(kArgument));
    return array;
  }

  // An array whose type, dtype and strides are valid.
  template <size_t kArgument>
  auto read(PyObject* value) {
    constexpr const Argument& argument = kOp.arguments[kArgument];
    constexpr const Op& op = kNamed<kOp>;
    if constexpr (argument.kind == Kind::stored)
      return read_stored(op, argument.name, value);
    else if constexpr (argument.kind == Kind::quantized)
      return read_quantized(op, argument.name, value);
    else if constexpr (argument.kind == Kind::index)
      return ids_of(op, argument.name, value);
    else if constexpr (argument.kind == Kind::own)
      return own<kArgument>(value);
    else if constexpr (argument.kind == Kind::any_float && argument.axes.is_vector())
      return array(op, argument.name, value);
    else
      return strided_array(op, argument.name, value, argument.kind == Kind::mask);
  }

  // A weight, which has no leading axes, may be float32 too.
  template <size_t kArgument>
  Array own(PyObject* value) {
    constexpr const Argument& argument = kOp.arguments[kArgument];
    constexpr const Op& op = kNamed<kOp>;
    const Array found =
        kTakesStrides<kOp> ? strided_array(op, argument.name, value) : array(op, argument.name, value);
    if constexpr (kArgument == kOp.first())
      dtype_ = found.dtype;
    else
      check_dtype(op, argument.name, found, dtype_, !argument.axes.leads);
    return found;
  }

  [[noreturn]] static void wrong_shape(const char* name, const Dimensions& found,
                                       const std::string& expected) {
    kNamed<kOp>.wrong_value(name, "has shape " + shape_text(found.count, found.sizes), expected);
  }

  PyObject* values_[kOp.places()];
  Sizes<kOp> sizes_;
  DType dtype_;  // of the op's own arrays
};

// A call with valid arguments, and its results.
template <const Declaration& kOp>
class Call : public All<Arguments<kOp>> {
 public:
  Call(PyObject* const* args, Py_ssize_t nargs, PyObject* keywords)
      : All<Arguments<kOp>>(args, nargs, keywords) {
    check_indices(std::make_index_sequence<kOp.count>());
  }

  // A new array, or the caller's, which must not overlap `other` either.
  template <size_t kResult = 0>
  results::Result result(PyObject* out, const char* name, const Input& other = {}) const {
    if constexpr (kOp.in_place(kOp.first(), kResult)) {  // of the same shape
      const Array& like = this->template get<kOp.first()>();
      return result<kResult>(out, name, {like.ndim, like.shape}, other);
    } else {
      const ResultShape shape = this->sizes().shape_of_result(kResult);
      return result<kResult>(out, name, {shape.ndim, shape.sizes}, other);
    }
  }

 private:
  template <size_t... kArgument>
  void check_indices(std::index_sequence<kArgument...>) const {
    (check_index<kArgument>(), ...);
  }

  template <size_t kArgument>
  void check_index() const {
    constexpr const Argument& argument = kOp.arguments[kArgument];
    if constexpr (argument.kind == Kind::index) {
      const int64_t count = this->sizes()[kOp.axis(argument.of.view())];
      for (const int64_t id : this->template get<kArgument>().values)
        if (id < 0 || id >= count)
          kNamed<kOp>.wrong_value(argument.name, "has value " + std::to_string(id),
                                  "0 to " + std::to_string(count - 1));
    }
  }

  template <size_t kResult>
  results::Result result(PyObject* out, const char* name, const Dimensions& shape, const Input& other) const {
    const auto& like = this->template get<kOp.first()>();
    if (!present(out)) return new_like(like, shape.count, shape.sizes);
    return check_result<kResult>(out, name, shape, other, std::make_index_sequence<kOp.count>());
  }

  template <size_t kResult, size_t... kArgument>
  results::Result check_result(PyObject* out, const char* name, const Dimensions& shape, const Input& other,
                               std::index_sequence<kArgument...>) const {
    const DType dtype = dtype_of_values(this->template get<kOp.first()>());
    return {check_out(kNamed<kOp>, out, dtype, shape.count, shape.sizes,
                      {input<kArgument, kResult>()..., other}, name, kTakesStrides<kOp>),
            py::reinterpret_borrow<py::object>(out)};
  }

  template <size_t kArgument, size_t kResult>
  Input input() const {
    constexpr const Argument& argument = kOp.arguments[kArgument];
    if constexpr (argument.is_array())
      return {argument.name, &memory(this->template get<kArgument>()), kOp.in_place(kArgument, kResult)};
    else
      return {};
  }
};

template <const Declaration& kOp, auto kRun>
PyObject* run_call(PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  const Call<kOp> call(args, nargs, keywords);
  if constexpr (kOp.gives_quantized) {
    return call.apply(kRun);
  } else if constexpr (kOp.outs == 1) {
    results::Result out = call.result(call.out(), "out");
    if (out.size) call.apply(kRun, static_cast<const Array&>(out));
    return out.give();
  } else {
    const auto outs = several_outs<kOp.outs>(kNamed<kOp>, call.out());
    results::Result a = call.result(outs[0], "out[0]");
    results::Result b = call.template result<1>(outs[1], "out[1]", {"out[0]", &a, false});
    if (a.size) call.apply(kRun, static_cast<const Array&>(a), static_cast<const Array&>(b));
    return results::both(call.out(), a, b);
  }
}

// The row of an op in the module's method table.
template <const Declaration& kOp, auto kRun>
PyMethodDef row() {
  static constexpr auto kText = documentation(kOp);
  Function* const function = [](PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    return python_call([&] { return run_call<kOp, kRun>(args, nargs, keywords); });
  };
  return method(kOp.name, function, kText);
}

}  // namespace ops
