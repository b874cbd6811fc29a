// Parses the arguments of a native op called from Python: their places, the checks of arrays with their
// messages, and where results are stored. The native backends share it; nothing here depends on an op or a
// device.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>

#include "../cpu/kernels.h"
#include "../ops/sizes.h"
#include "interpreter.h"

namespace arguments {

namespace py = pybind11;
using airllm::declared::shape_text;
using cpu::DType;
using cpu::itemsize;

// An array as kernels use it: aligned, of a known dtype, and dense unless strided_array() returned it.
struct Array {
  PyObject* object = nullptr;
  char* data = nullptr;
  int ndim = 0;
  const py::ssize_t* shape = nullptr;
  const py::ssize_t* strides = nullptr;  // in bytes; null: dense
  DType dtype = cpu::kFloat32;
  int64_t size = 1;

  // An axis, counted from the last one.
  int64_t axis(int from_last) const { return shape[ndim - from_last]; }
  int64_t nbytes() const { return size * itemsize(dtype); }
};

inline const char* dtype_name(DType dtype) {
  static const char* const names[] = {"float32", "float16", "bfloat16", "bool"};
  return names[dtype];
}

// An op's name and parameters. Every message starts with the op and names the argument.
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

[[noreturn]] inline void not_implemented(const Op& op, const std::string& what) {
  PyErr_SetString(PyExc_NotImplementedError, (std::string(op.name) + ": " + what).c_str());
  throw py::error_already_set();
}

// Assigns the arguments of a METH_FASTCALL | METH_KEYWORDS call to parameters; missing ones stay null. The
// first `positional` parameters may be passed by position; the first `required` ones must be passed.
template <size_t N>
inline void place(const Op& op, PyObject* (&values)[N], const char* const (&names)[N], size_t positional,
                  size_t required, PyObject* const* args, Py_ssize_t nargs, PyObject* keywords) {
  const auto fail = [&](const std::string& what) {
    throw py::type_error(std::string(op.name) + "() " + what);
  };
  if (nargs > static_cast<Py_ssize_t>(positional))
    fail("takes at most " + std::to_string(positional) + " positional arguments (" + std::to_string(nargs) +
         " given)");
  for (size_t i = 0; i < N; ++i) values[i] = static_cast<Py_ssize_t>(i) < nargs ? args[i] : nullptr;
  const Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (Py_ssize_t j = 0; j < named; ++j) {
    PyObject* keyword = PyTuple_GET_ITEM(keywords, j);
    size_t i = 0;
    while (i < N && PyUnicode_CompareWithASCIIString(keyword, names[i]) != 0) ++i;
    if (i == N) fail("got an unexpected keyword argument '" + std::string(py::str(keyword)) + "'");
    if (values[i]) fail("got multiple values for argument '" + std::string(names[i]) + "'");
    values[i] = args[nargs + j];
  }
  for (size_t i = 0; i < required; ++i)
    if (!values[i]) fail("missing required argument '" + std::string(names[i]) + "'");
}

// Whether an argument that may be None was passed.
inline bool present(PyObject* value) { return value && value != Py_None; }

// A type's name in Python, without its module.
inline std::string type_name(PyObject* value) {
  const char* name = Py_TYPE(value)->tp_name;
  const char* dot = std::strrchr(name, '.');
  return dot ? dot + 1 : name;
}

[[noreturn]] inline void wrong_kind(const Op& op, const char* name, PyObject* value, const char* expected) {
  op.wrong_type(name, "has type " + type_name(value), expected);
}

inline bool is_bool(PyObject* value) {
  return PyBool_Check(value) || std::strncmp(Py_TYPE(value)->tp_name, "numpy.bool", 10) == 0;
}

// A number parameter, or its default.
inline float number(const Op& op, const char* name, PyObject* value, float otherwise,
                    const char* expected = "a number") {
  if (!value) return otherwise;
  const auto& numpy = py::detail::npy_api::get();
  const bool is_number = PyNumber_Check(value) && !is_bool(value) && !numpy.PyArray_Check_(value);
  const double number = is_number ? PyFloat_AsDouble(value) : -1.0;
  if (!is_number || (number == -1.0 && PyErr_Occurred())) {
    const bool too_large = is_number && PyErr_ExceptionMatches(PyExc_OverflowError);
    PyErr_Clear();
    if (!too_large) wrong_kind(op, name, value, expected);
    op.wrong_value(name, "has type " + type_name(value), "a number that a float holds");
  }
  return static_cast<float>(number);
}

inline std::optional<float> optional_number(const Op& op, const char* name, PyObject* value) {
  if (!present(value)) return std::nullopt;
  return number(op, name, value, 0.f, "a number or None");
}

inline std::optional<float> optional_positive(const Op& op, const char* name, PyObject* value) {
  const std::optional<float> found = optional_number(op, name, value);
  if (found && !(*found > 0))
    op.wrong_value(name, "has value " + std::to_string(*found), "more than 0 or None");
  return found;
}

// An integer of 1 or more.
inline std::optional<int64_t> optional_count(const Op& op, const char* name, PyObject* value) {
  if (!present(value)) return std::nullopt;
  const auto whole = py::reinterpret_steal<py::object>(is_bool(value) ? nullptr : PyNumber_Index(value));
  PyErr_Clear();
  if (!whole) wrong_kind(op, name, value, "a whole number or None");
  int overflow = 0;
  const int64_t count = PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow);
  if (overflow > 0) return std::numeric_limits<int64_t>::max();
  if (overflow < 0 || count < 1)
    op.wrong_value(name, "has value " + std::string(py::str(whole)), "1 or more or None");
  return count;
}

inline bool flag(const Op& op, const char* name, PyObject* value, bool otherwise) {
  if (!value) return otherwise;
  if (!is_bool(value)) wrong_kind(op, name, value, "a bool");
  return PyObject_IsTrue(value) == 1;
}

// The index of a string parameter among its choices; the first one is the default.
template <size_t N>
inline size_t choice(const Op& op, const char* name, PyObject* value, const char* const (&choices)[N]) {
  if (!value) return 0;
  if (!PyUnicode_Check(value)) wrong_kind(op, name, value, "a str");
  std::string expected;
  for (size_t i = 0; i < N; ++i) {
    if (PyUnicode_CompareWithASCIIString(value, choices[i]) == 0) return i;
    expected += (i ? " or '" : "'") + std::string(choices[i]) + "'";
  }
  op.wrong_value(name, "has value " + std::string(py::repr(value)), expected);
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
    case 0:
      *dtype = cpu::kBool;
      return true;
    default:
      *dtype = cpu::kBFloat16;
      return is_bfloat16(descr);
  }
}

inline std::string text_of(PyObject* object, const char* attribute) {
  return py::str(py::reinterpret_borrow<py::object>(object).attr(attribute));
}

inline PyObject* mapped_array_type() {
  return kept_object([] { return import_attribute("numpy", "memmap"); });
}

// Looks up what the checks of arguments need of NumPy. Modules call this when they are imported: pybind11
// takes the lock again in a destructor after its first lookup, which would end the process where the
// interpreter ends the thread there (see interpreter.h). Where NumPy is missing, modules can be imported too.
inline void find_numpy() {
  try {
    py::detail::npy_api::get();
    mapped_array_type();
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_ImportError)) throw;
  }
}

// A NumPy array or a memory-mapped one, such as weights. Other subclasses may define shapes differently.
inline bool is_array(PyObject* object) {
  if (Py_TYPE(object) == py::detail::npy_api::get().PyArray_Type_) return true;
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == mapped_array_type();
}

inline bool has_flags(PyObject* array, int flags) {
  return (py::detail::array_proxy(array)->flags & flags) == flags;
}

// A NumPy array of one of the three float dtypes, or of bool if a mask is allowed.
inline Array array_of_any_strides(const Op& op, const char* name, PyObject* object, bool may_be_bool) {
  if (!is_array(object)) wrong_kind(op, name, object, "a NumPy array");
  const auto* fields = py::detail::array_proxy(object);
  Array a;
  a.object = object;
  a.data = fields->data;
  a.ndim = fields->nd;
  a.shape = reinterpret_cast<const py::ssize_t*>(fields->dimensions);
  a.strides = reinterpret_cast<const py::ssize_t*>(fields->strides);
  if (!dtype_of(object, &a.dtype) || (a.dtype == cpu::kBool && !may_be_bool))
    op.wrong_type(name, "has dtype " + text_of(object, "dtype"),
                  std::string(may_be_bool ? "bool, " : "") + "float32, float16 or bfloat16 (convert with " +
                      name + ".astype(numpy.float32))");
  for (int i = 0; i < a.ndim; ++i) a.size *= a.shape[i];
  return a;
}

[[noreturn]] inline void wrong_strides(const Op& op, const char* name, const Array& a, const char* expected) {
  op.wrong_value(
      name, "has strides " + text_of(a.object, "strides"),
      std::string(expected) + " and aligned (pass numpy.ascontiguousarray(" + std::string(name) + "))");
}

// A C-contiguous, aligned NumPy array of one of the three dtypes; TypeError or ValueError otherwise.
inline Array array(const Op& op, const char* name, PyObject* object) {
  Array a = array_of_any_strides(op, name, object, false);
  if (!has_flags(object,
                 py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_))
    wrong_strides(op, name, a, "C-contiguous");
  a.strides = nullptr;
  return a;
}

// The same for an array of any strides whose last axis, if any, is contiguous.
inline Array strided_array(const Op& op, const char* name, PyObject* object, bool may_be_bool = false) {
  const Array a = array_of_any_strides(op, name, object, may_be_bool);
  const bool rows = a.ndim == 0 || !a.size || a.axis(1) <= 1 || a.strides[a.ndim - 1] == itemsize(a.dtype);
  if (!rows || !has_flags(object, py::detail::npy_api::NPY_ARRAY_ALIGNED_))
    wrong_strides(op, name, a, "the last axis contiguous");
  return a;
}

inline bool same_shape(const Array& a, int ndim, const py::ssize_t* shape) {
  return a.ndim == ndim && std::memcmp(a.shape, shape, sizeof(*shape) * ndim) == 0;
}

// A further array must have the first one's dtype; a weight may also have float32.
inline void check_dtype(const Op& op, const char* name, const Array& a, DType first, bool may_be_float32) {
  if (a.dtype == first || (may_be_float32 && a.dtype == cpu::kFloat32)) return;
  std::string expected = dtype_name(first);
  if (may_be_float32 && first != cpu::kFloat32) expected += " or float32";
  op.wrong_type(name, std::string("has dtype ") + dtype_name(a.dtype), expected);
}

// An input that `out` must not overlap. It may be `out` itself if `in_place` is set and it is dense.
struct Input {
  const char* name;
  const Array* array;  // null: none
  bool in_place;
};

// The memory from the first to the last element.
struct Extent {
  const char *begin, *end;
};

inline Extent extent(const Array& a) {
  if (!a.size || !a.strides) return {a.data, a.data + a.nbytes()};
  Extent all{a.data, a.data + itemsize(a.dtype)};
  for (int i = 0; i < a.ndim; ++i)
    (a.strides[i] < 0 ? all.begin : all.end) += (a.shape[i] - 1) * a.strides[i];
  return all;
}

inline bool overlap(const Array& a, const Array& b) {
  const Extent in_a = extent(a), in_b = extent(b);
  return in_a.begin < in_b.end && in_b.begin < in_a.end;
}

// Checks `out=`: the result's shape and dtype, writeable, and no overlap with the inputs.
inline Array check_out(const Op& op, PyObject* object, DType dtype, int ndim, const py::ssize_t* shape,
                       std::initializer_list<Input> inputs, const char* name = "out",
                       bool any_strides = false) {
  const Array out = any_strides ? strided_array(op, name, object) : array(op, name, object);
  if (!same_shape(out, ndim, shape)) op.wrong_shape(name, out, shape_text(ndim, shape));
  if (out.dtype != dtype)
    op.wrong_type(name, std::string("has dtype ") + dtype_name(out.dtype), dtype_name(dtype));
  if (!has_flags(object, py::detail::npy_api::NPY_ARRAY_WRITEABLE_))
    throw py::value_error(std::string(op.name) + ": " + name + " is read-only, expected a writeable array");
  for (const Input& in : inputs) {
    if (!in.array) continue;
    const bool itself = in.in_place && in.array->data == out.data && in.array->nbytes() == out.nbytes();
    if (!itself && overlap(*in.array, out))
      throw py::value_error(std::string(op.name) + ": " + name + " overlaps " + in.name +
                            ", expected memory of its own" +
                            (in.in_place ? std::string(" or exactly ") + in.name : ""));
  }
  return out;
}

// The arrays of an `out=` of several results, or nulls if it was not passed.
template <size_t N>
inline std::array<PyObject*, N> several_outs(const Op& op, PyObject* out) {
  std::array<PyObject*, N> each{};
  if (!present(out)) return each;
  const std::string expected = "a tuple of " + std::to_string(N) + " arrays";
  if (!PyTuple_Check(out) && !PyList_Check(out)) wrong_kind(op, "out", out, expected.c_str());
  if (PySequence_Fast_GET_SIZE(out) != static_cast<Py_ssize_t>(N))
    op.wrong_type("out", "has " + std::to_string(PySequence_Fast_GET_SIZE(out)) + " arrays", expected);
  for (size_t i = 0; i < N; ++i) {
    each[i] = PySequence_Fast_GET_ITEM(out, i);
    if (each[i] == Py_None)
      wrong_kind(op, ("out[" + std::to_string(i) + "]").c_str(), each[i], "a NumPy array");
  }
  return each;
}

}  // namespace arguments
