// How Python hands arrays to a native op: the arguments' places, the arrays' checks and their messages,
// and where results lie. Shared by the native backends; nothing here knows an op or a device.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstring>
#include <initializer_list>
#include <string>

#include "cpu/kernels.h"

namespace arguments {

namespace py = pybind11;
using cpu::DType;

// An array as kernels see it: dense, aligned, of a known dtype.
struct Array {
  PyObject* object = nullptr;
  char* data = nullptr;
  int ndim = 0;
  const py::ssize_t* shape = nullptr;
  DType dtype = cpu::kFloat32;
  int64_t size = 1;

  // An axis counted from the last one.
  int64_t axis(int from_last) const { return shape[ndim - from_last]; }
  int64_t nbytes() const { return size * (dtype == cpu::kFloat32 ? 4 : 2); }
};

inline const char* dtype_name(DType dtype) {
  static const char* const names[] = {"float32", "float16", "bfloat16"};
  return names[dtype];
}

// A shape as Python writes a tuple.
inline std::string shape_text(int ndim, const py::ssize_t* shape) {
  std::string text = "(";
  for (int i = 0; i < ndim; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (ndim == 1 ? ",)" : ")");
}

// One op's name and parameters. Every message starts with the op and names the argument.
struct Op {
  const char* name;

  std::string says(const char* argument, const std::string& found, const std::string& expected) const {
    return std::string(name) + ": " + argument + " " + found + ", expected " + expected;
  }
  [[noreturn]] void wrong_value(const char* argument, const std::string& found,
                                const std::string& expected) const {
    throw py::value_error(says(argument, found, expected));
  }
  [[noreturn]] void wrong_type(const char* argument, const std::string& found,
                               const std::string& expected) const {
    throw py::type_error(says(argument, found, expected));
  }
  [[noreturn]] void wrong_shape(const char* argument, const Array& array, const std::string& expected) const {
    wrong_value(argument, "has shape " + shape_text(array.ndim, array.shape), expected);
  }
};

// Places the arguments of a METH_FASTCALL | METH_KEYWORDS call; parameters not given stay null.
// `positional` of the parameters may be given without their names, `required` must be given.
template <size_t N>
inline void place(const Op& op, PyObject* (&values)[N], const char* const (&names)[N], size_t positional,
                  size_t required, PyObject* const* args, Py_ssize_t given, PyObject* keywords) {
  const auto fail = [&](const std::string& what) {
    throw py::type_error(std::string(op.name) + "() " + what);
  };
  if (given > static_cast<Py_ssize_t>(positional))
    fail("takes at most " + std::to_string(positional) + " positional arguments (" + std::to_string(given) +
         " given)");
  for (size_t i = 0; i < N; ++i) values[i] = static_cast<Py_ssize_t>(i) < given ? args[i] : nullptr;
  const Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (Py_ssize_t j = 0; j < named; ++j) {
    PyObject* keyword = PyTuple_GET_ITEM(keywords, j);
    size_t i = 0;
    while (i < N && PyUnicode_CompareWithASCIIString(keyword, names[i]) != 0) ++i;
    if (i == N) fail("got an unexpected keyword argument '" + std::string(py::str(keyword)) + "'");
    if (values[i]) fail("got multiple values for argument '" + std::string(names[i]) + "'");
    values[i] = args[given + j];
  }
  for (size_t i = 0; i < required; ++i)
    if (!values[i]) fail("missing required argument '" + std::string(names[i]) + "'");
}

// A number parameter, or its default.
inline float number(const Op& op, const char* name, PyObject* value, float otherwise) {
  if (!value) return otherwise;
  const auto& numpy = py::detail::npy_api::get();
  const bool is_number = PyNumber_Check(value) && !PyBool_Check(value) && !numpy.PyArray_Check_(value);
  const double number = is_number ? PyFloat_AsDouble(value) : -1.0;
  if (!is_number || (number == -1.0 && PyErr_Occurred())) {
    const bool too_large = is_number && PyErr_ExceptionMatches(PyExc_OverflowError);
    PyErr_Clear();
    const std::string found = std::string("has type ") + Py_TYPE(value)->tp_name;
    if (too_large) op.wrong_value(name, found, "a number that a float holds");
    op.wrong_type(name, found, "a number");
  }
  return static_cast<float>(number);
}

inline bool is_bfloat16(const py::detail::PyArrayDescr_Proxy* descr) {
  constexpr int kFirstOfOtherLibraries = 256;
  if (descr->type_num < kFirstOfOtherLibraries) return false;
  const char* name = reinterpret_cast<const PyTypeObject*>(descr->typeobj)->tp_name;
  const char* dot = std::strrchr(name, '.');
  return std::strcmp(dot ? dot + 1 : name, "bfloat16") == 0;
}

inline bool dtype_of(const PyObject* object, DType* dtype) {
  const auto* descr = py::detail::array_descriptor_proxy(py::detail::array_proxy(object)->descr);
  if (descr->byteorder == '>') return false;  // the kernels' architectures are little-endian
  switch (descr->type_num) {
    case 11:
      *dtype = cpu::kFloat32;
      return true;
    case 23:
      *dtype = cpu::kFloat16;
      return true;
    default:
      *dtype = cpu::kBFloat16;
      return is_bfloat16(descr);
  }
}

inline std::string text_of(PyObject* object, const char* attribute) {
  return py::str(py::reinterpret_borrow<py::object>(object).attr(attribute));
}

// NumPy's array, or one of a mapped file, as weights are; other subclasses may mean something else by a
// shape.
inline bool is_array(PyObject* object) {
  if (Py_TYPE(object) == py::detail::npy_api::get().PyArray_Type_) return true;
  static const PyObject* const mapped =
      py::object(py::module_::import("numpy").attr("memmap")).release().ptr();
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == mapped;
}

// A C-contiguous, aligned NumPy array of one of the three dtypes; TypeError or ValueError otherwise.
inline Array array(const Op& op, const char* name, PyObject* object) {
  if (!is_array(object))
    op.wrong_type(name, std::string("has type ") + Py_TYPE(object)->tp_name, "a NumPy array");
  const auto* fields = py::detail::array_proxy(object);
  Array a;
  a.object = object;
  a.data = fields->data;
  a.ndim = fields->nd;
  a.shape = reinterpret_cast<const py::ssize_t*>(fields->dimensions);
  if (!dtype_of(object, &a.dtype))
    op.wrong_type(
        name, "has dtype " + text_of(object, "dtype"),
        "float32, float16 or bfloat16 (convert with " + std::string(name) + ".astype(numpy.float32))");
  constexpr int kDense =
      py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  if ((fields->flags & kDense) != kDense)
    op.wrong_value(name, "has strides " + text_of(object, "strides"),
                   "C-contiguous and aligned (pass numpy.ascontiguousarray(" + std::string(name) + "))");
  for (int i = 0; i < a.ndim; ++i) a.size *= a.shape[i];
  return a;
}

inline bool same_shape(const Array& a, int ndim, const py::ssize_t* shape) {
  return a.ndim == ndim && std::memcmp(a.shape, shape, sizeof(*shape) * ndim) == 0;
}

// `dtype` of a further array is the first one's, or, where it is a weight, float32.
inline void check_dtype(const Op& op, const char* name, const Array& a, const Array& first,
                        bool may_be_float32) {
  if (a.dtype == first.dtype || (may_be_float32 && a.dtype == cpu::kFloat32)) return;
  std::string expected = dtype_name(first.dtype);
  if (may_be_float32 && first.dtype != cpu::kFloat32) expected += " or float32";
  op.wrong_type(name, std::string("has dtype ") + dtype_name(a.dtype), expected);
}

// An input that `out` may not overlap, unless it is `out` itself and `in_place` says so.
struct Input {
  const char* name;
  const Array* array;
  bool in_place;
};

// The checks of `out=`: the result's shape and dtype, writeable, memory of its own.
inline Array checked_out(const Op& op, PyObject* object, DType dtype, int ndim, const py::ssize_t* shape,
                         std::initializer_list<Input> inputs) {
  const Array out = array(op, "out", object);
  if (!same_shape(out, ndim, shape)) op.wrong_shape("out", out, shape_text(ndim, shape));
  if (out.dtype != dtype)
    op.wrong_type("out", std::string("has dtype ") + dtype_name(out.dtype), dtype_name(dtype));
  if (!(py::detail::array_proxy(object)->flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_))
    throw py::value_error(std::string(op.name) + ": out is read-only, expected a writeable array");
  for (const Input& in : inputs) {
    const bool itself = in.in_place && in.array->data == out.data && in.array->nbytes() == out.nbytes();
    const bool apart =
        in.array->data + in.array->nbytes() <= out.data || out.data + out.nbytes() <= in.array->data;
    if (!itself && !apart)
      throw py::value_error(std::string(op.name) + ": out overlaps " + in.name +
                            ", expected memory of its own" +
                            (in.in_place ? std::string(" or exactly ") + in.name : ""));
  }
  return out;
}

// What a Python function may throw, as Python's own error; for the outermost frame of a native function.
template <class F>
inline PyObject* python_call(const F& body) noexcept {
  try {
    return body();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace arguments
