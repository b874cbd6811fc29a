// The dtypes of arrays as NumPy, DLPack and __cuda_array_interface__ name them, and which of them an argument
// may have.
#pragma once

#include <pybind11/numpy.h>

#include <string>

#include "../../bindings/arguments.h"
#include "../launch/launch.h"
#include "dlpack.h"

namespace airllm::cuda {

namespace py = pybind11;

struct DTypeFacts {
  DType dtype;
  const char* name;     // NumPy's
  const char* typestr;  // of __cuda_array_interface__; null for bfloat16
  dlpack::TypeCode code;
};

constexpr DTypeFacts kDTypes[] = {
    {DType::f32, "float32", "<f4", dlpack::kFloat},      {DType::f16, "float16", "<f2", dlpack::kFloat},
    {DType::bf16, "bfloat16", nullptr, dlpack::kBfloat}, {DType::boolean, "bool", "|b1", dlpack::kBool},
    {DType::u8, "uint8", "|u1", dlpack::kUInt},          {DType::i32, "int32", "<i4", dlpack::kInt},
    {DType::i64, "int64", "<i8", dlpack::kInt},
};

constexpr const DTypeFacts& facts(DType dtype) { return kDTypes[int(dtype)]; }

inline py::dtype new_numpy_dtype(DType dtype) {
  if (dtype == DType::bf16) return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
  return py::dtype(facts(dtype).name);
}

inline py::dtype numpy_dtype(DType dtype) {
  static PyObject* dtypes[sizeof kDTypes / sizeof *kDTypes] = {};  // never freed; guarded by the GIL
  PyObject*& found = dtypes[int(dtype)];
  if (!found) found = new_numpy_dtype(dtype).release().ptr();
  return py::reinterpret_borrow<py::dtype>(found);
}

// The dtype of a NumPy array, or null if it is not supported.
inline const DTypeFacts* facts_of_numpy(PyObject* array) {
  const auto* descr = py::detail::array_descriptor_proxy(py::detail::array_proxy(array)->descr);
  if (descr->byteorder == '>') return nullptr;
  if (arguments::is_bfloat16(descr)) return &facts(DType::bf16);
  using Numpy = py::detail::npy_api;
  switch (descr->type_num) {
    case Numpy::NPY_FLOAT_:
      return &facts(DType::f32);
    case 23:  // half, for which pybind11 has no name
      return &facts(DType::f16);
    case Numpy::NPY_BOOL_:
      return &facts(DType::boolean);
    case Numpy::NPY_UBYTE_:
      return &facts(DType::u8);
    case Numpy::NPY_INT_:
      return &facts(DType::i32);
    case Numpy::NPY_LONG_:
      return &facts(sizeof(long) == 8 ? DType::i64 : DType::i32);
    case Numpy::NPY_LONGLONG_:
      return &facts(DType::i64);
    default:
      return nullptr;
  }
}

inline const DTypeFacts* facts_of_dlpack(const dlpack::Type& type) {
  for (const DTypeFacts& known : kDTypes) {
    if (type.lanes == 1 && type.code == known.code && type.bits == 8 * size_of(known.dtype)) return &known;
  }
  return nullptr;
}

inline const DTypeFacts* facts_of_typestr(const std::string& typestr) {
  for (const DTypeFacts& known : kDTypes) {
    if (known.typestr && (typestr == known.typestr || typestr == std::string("=") + (known.typestr + 1)))
      return &known;
  }
  return nullptr;
}

// A set of dtypes, as a bit mask of their numbers.
class DTypes {
 public:
  template <class... Some>
  constexpr DTypes(Some... some) : bits_(((1u << int(some)) | ...)) {}

  constexpr bool has(DType dtype) const { return (bits_ >> int(dtype) & 1) != 0; }

  // "bool, float32, float16 or bfloat16"
  std::string text() const {
    std::string found;
    unsigned left = bits_;
    for (const DType dtype :
         {DType::boolean, DType::f32, DType::f16, DType::bf16, DType::u8, DType::i64, DType::i32}) {
      if (!has(dtype)) continue;
      left &= ~(1u << int(dtype));
      found += (found.empty() ? "" : left ? ", " : " or ") + std::string(facts(dtype).name);
    }
    return found;
  }

 private:
  unsigned bits_;
};

constexpr DTypes kFloats{DType::f32, DType::f16, DType::bf16};
constexpr DTypes kMasks{DType::boolean, DType::f32, DType::f16, DType::bf16};
constexpr DTypes kIds{DType::i32, DType::i64};
constexpr DTypes kBytes{DType::u8};
constexpr DTypes kAny{DType::f32, DType::f16, DType::bf16, DType::boolean, DType::u8, DType::i32, DType::i64};

}  // namespace airllm::cuda
