// Turns the ops into functions of the module: their arguments and results follow from their declarations
// (ops/table.h). The other files in this folder have a short function per op. It takes the call, its results
// and its arguments, in declared order, and returns what launches its kernels.
#pragma once

#include <string>
#include <vector>

#include "../../bindings/declared_call.h"
#include "call.h"

namespace airllm::cuda {

using namespace declared;

// Whether the kernel takes the op's own arrays with any strides, if the last axis is contiguous.
template <const Declaration& kOp>
inline constexpr bool kTakesStrides = false;

// A failing op raises MemoryError if the device is full, else RuntimeError, with the op's name.
template <class Run>
PyObject* named_errors(const Op& op, const Run& run) noexcept {
  return arguments::python_call([&]() -> PyObject* {
    try {
      return run().release().ptr();
    } catch (const CudaError& error) {
      PyErr_Format(error.out_of_memory() ? PyExc_MemoryError : PyExc_RuntimeError, "%s: %s", op.name,
                   error.what());
    } catch (const py::builtin_exception&) {
      throw;
    } catch (const py::error_already_set&) {
      throw;
    } catch (const std::runtime_error& error) {
      PyErr_Format(PyExc_RuntimeError, "%s: %s", op.name, error.what());
    }
    return nullptr;
  });
}

inline int64_t rows_of(const Operand& x) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < x.shape.size(); ++i) rows *= x.shape[i];
  return rows;
}

// `x` must have the dtype `first`; a weight may also have float32.
inline void check_dtype(const Op& op, const Operand& x, DType first, bool may_be_float32) {
  if (x.dtype == first || (may_be_float32 && x.dtype == DType::f32)) return;
  std::string expected = facts(first).name;
  if (may_be_float32 && first != DType::f32) expected += " or float32";
  op.wrong_type(x.name, std::string("has dtype ") + facts(x.dtype).name, expected);
}

// The arguments of a call, read in their order.
template <const Declaration& kOp>
class Arguments : public Call {
 public:
  static constexpr const Declaration& kDeclared = kOp;

  Arguments(PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) : Call(arguments::kNamed<kOp>) {
    arguments::place(op, values_, arguments::kNames<kOp>.all, kOp.count, kOp.required, args, nargs, keywords);
  }

  template <size_t kArgument>
  decltype(auto) take() {
    if constexpr (kOp.arguments[kArgument].is_array())
      return array<kArgument>(values_[kArgument]);
    else
      return arguments::parameter<kOp, kArgument>(values_[kArgument]);
  }

  PyObject* out() const { return values_[kOp.count]; }

  template <size_t kResult>
  Shape shape_of_result() const {
    const ResultShape shape = sizes_.shape_of_result(kResult);
    return Shape(shape.sizes, shape.sizes + shape.ndim);
  }

 private:
  template <size_t kArgument>
  const Operand& array(PyObject* value) {
    constexpr const Argument& argument = kOp.arguments[kArgument];
    if (argument.may_be_none && !arguments::present(value)) return absent();
    Operand x = read(argument, value);
    if (!sizes_.template take<kArgument>(x.ndim(), x.shape.data()))
      wrong_shape(x, sizes_.expected(kArgument, x.ndim()));
    if (!sizes_.template hold<kArgument>()) wrong_shape(x, sizes_.requirement(kArgument));
    if constexpr (kOp.binds_leading(kArgument))
      leading.assign(sizes_.leading(), sizes_.leading() + sizes_.leading_count());
    const Operand& in = input(std::move(x));
    if constexpr (kArgument == kOp.first())
      dtype_ = in.dtype;
    else if constexpr (argument.kind == Kind::own)  // a weight has no leading axes
      check_dtype(op, in, dtype_, !argument.axes.leads);
    return in;
  }

  // An array whose type, dtype and strides are valid.
  Operand read(const Argument& argument, PyObject* value) const {
    switch (argument.kind) {
      case Kind::stored:
        return read_stored(op, argument.name, value);
      case Kind::quantized:
        return read_quantized(op, argument.name, value);
      case Kind::index:
        return operand(op, argument.name, value, {kIds});
      case Kind::mask:
        return operand(op, argument.name, value, {kMasks, Layout::rows});
      default:
        return operand(op, argument.name, value,
                       {kFloats, kTakesStrides<kOp> ? Layout::rows : Layout::dense});
    }
  }

  [[noreturn]] void wrong_shape(const Operand& x, const std::string& expected) const {
    op.wrong_value(x.name, "has shape " + tuple_text(x.shape), expected);
  }

  PyObject* values_[kOp.places()];
  Sizes<kOp> sizes_;
  DType dtype_{};  // of the op's own arrays
};

// The inputs that a result may be exactly.
template <const Declaration& kOp, size_t kResult, size_t... kArgument>
std::vector<const Operand*> in_place(const arguments::All<Arguments<kOp>>& call,
                                     std::index_sequence<kArgument...>) {
  std::vector<const Operand*> found;
  const auto add = [&](auto index) {
    if constexpr (kOp.in_place(index, kResult)) found.push_back(&call.template get<index>());
  };
  (add(std::integral_constant<size_t, kArgument>()), ...);
  return found;
}

template <const Declaration& kOp, size_t kResult = 0>
const Operand& result(arguments::All<Arguments<kOp>>& call, PyObject* out, const char* name) {
  const Operand& like = call.template get<kOp.first()>();
  if (kOp.arguments[kOp.first()].kind == Kind::own) call.results_are_like(like);
  return call.result(out, like.block ? DType::f32 : like.dtype, call.template shape_of_result<kResult>(),
                     in_place<kOp, kResult>(call, std::make_index_sequence<kOp.count>()), name);
}

template <const Declaration& kOp, auto kLaunch>
py::object run_call(PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  arguments::All<Arguments<kOp>> call(args, nargs, keywords);
  if constexpr (kOp.outs == 1) {
    const Operand& out = result<kOp>(call, call.out(), "out");
    return call.run(call.apply(kLaunch, static_cast<const Call&>(call), out));
  } else {
    const auto outs = arguments::several_outs<kOp.outs>(call.op, call.out());
    const Operand& a = result<kOp>(call, outs[0], "out[0]");
    const Operand& b = result<kOp, 1>(call, outs[1], "out[1]");
    return call.run(call.apply(kLaunch, static_cast<const Call&>(call), a, b), call.out());
  }
}

// The row of an op in the module's method table.
template <const Declaration& kOp, auto kLaunch>
PyMethodDef row() {
  static constexpr auto kText = documentation(kOp);
  const auto function = +[](PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
    return named_errors(arguments::kNamed<kOp>,
                        [&] { return run_call<kOp, kLaunch>(args, nargs, keywords); });
  };
  return {kOp.name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, kText};
}

}  // namespace airllm::cuda
