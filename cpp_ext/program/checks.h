// Checks the arguments of an op. Messages are as in Python: "op: argument has X, expected Y".
#pragma once
#include <airllm/backend/backends.h>

#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

#include "../cpu/dtypes.h"
#include "../cpu/names.h"
#include "../cpu/quantized/gemv/gemv.h"
#include "../ops/table.h"

namespace airllm::backend {

using declared::Argument, declared::Declaration, declared::Kind;

static_assert(int(DType::FLOAT32) == cpu::kFloat32 && int(DType::FLOAT16) == cpu::kFloat16 &&
              int(DType::BFLOAT16) == cpu::kBFloat16 && int(DType::BOOL) == cpu::kBool);

// The memory of an argument.
struct Used {
  const char* name = nullptr;
  const char *begin = nullptr, *end = nullptr;
};

// The checks of one call. They return arguments in the form that kernels take.
class Checks {
 public:
  explicit Checks(const char* op) : op_(op) {}

  [[noreturn]] void wrong(const std::string& argument, const std::string& found,
                          const std::string& expected) const {
    throw std::invalid_argument(std::string(op_) + ": " + argument + " has " + found + ", expected " +
                                expected);
  }
  [[noreturn]] void wrong_value(const char* argument, int64_t value, const std::string& expected) const {
    wrong(argument, "value " + std::to_string(value), expected);
  }

  // The product of sizes; a negative size is an error.
  int64_t elements(std::initializer_list<std::pair<const char*, int64_t>> sizes) const {
    int64_t all = 1;
    for (const auto& [name, size] : sizes) {
      if (size < 0) wrong_value(name, size, "0 or more");
      if (__builtin_mul_overflow(all, size, &all) || all > kMostElements)
        wrong_value(name, size, "an array that fits memory");
    }
    return all;
  }

  static constexpr std::initializer_list<DType> kFloats = {DType::FLOAT32, DType::FLOAT16, DType::BFLOAT16};

  Used input(const char* name, Input in, int64_t n, std::initializer_list<DType> dtypes = kFloats) const {
    return memory(name, in.data, in.dtype, n, dtypes);
  }
  void apart(const Used& out, const Used& in, bool may_be_it = false) const {
    const bool is_it = may_be_it && in.begin == out.begin && in.end == out.end;
    if (!is_it && in.begin < out.end && out.begin < in.end)
      throw std::invalid_argument(std::string(op_) + ": " + out.name + " overlaps " + in.name +
                                  ", expected memory of its own" +
                                  (may_be_it ? " or exactly " + std::string(in.name) : ""));
  }
  Used bytes(const char* name, const void* data, int64_t n) const {
    if (n && !data) wrong(name, "a null pointer", std::to_string(n) + " bytes");
    const char* const begin = static_cast<const char*>(data);
    return {name, begin, begin + n};
  }

  cpu::Format format(const char* name, bool to_quantize = false) const {
    std::string known;
    for (int f = 0; f < cpu::kFormats; ++f) {
      if (to_quantize && !cpu::kBlocks[f].has_quantizer) continue;
      if (name && cpu::same_name(name, cpu::kBlocks[f].name)) return cpu::Format(f);
      known += (known.empty() ? "" : ", ") + std::string(cpu::kBlocks[f].name);
    }
    wrong("format", "value '" + std::string(name ? name : "") + "'", "one of " + known);
  }
  // The bytes of rows of k values; k must be a whole number of blocks.
  int64_t row_bytes(cpu::Format format, int64_t k) const {
    const cpu::Block& block = cpu::kBlocks[format];
    if (k < 0 || k % block.values)
      wrong_value("k", k, "a multiple of " + std::to_string(block.values) + ", the block of " + block.name);
    return cpu::row_bytes(format, k);
  }

 private:
  static constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max() / 16;  // their bytes fit too

  Used memory(const char* name, const void* data, DType dtype, int64_t n,
              std::initializer_list<DType> dtypes) const {
    bool known = false;
    std::string expected;
    for (const DType each : dtypes) {
      known = known || each == dtype;
      expected += (expected.empty() ? "" : " or ") + std::string(text(each));
    }
    if (!known) wrong(name, std::string("dtype ") + text(dtype), expected);
    if (n && !data) wrong(name, "a null pointer", std::to_string(n) + " elements of " + text(dtype));
    const int64_t size = cpu::itemsize(cpu::DType(dtype));
    if (reinterpret_cast<uintptr_t>(data) % size)
      wrong(name, "an address that is not aligned", "a multiple of " + std::to_string(size) + " bytes");
    const char* const begin = static_cast<const char*>(data);
    return {name, begin, begin + n * size};
  }
  static const char* text(DType dtype) {
    static const char* const names[] = {"float32", "float16", "bfloat16", "bool"};
    return unsigned(dtype) < 4 ? names[int(dtype)] : "of no name";
  }

  const char* op_;
};

// An array of this many elements, or of bytes if it is stored. An optional array that is null has none.
struct Sized {
  const void* data;
  DType dtype;
  int64_t n;

  Sized(Input in, int64_t n_) : data(in.data), dtype(in.dtype), n(n_) {}
  Sized(Weight weight, int64_t bytes) : data(weight.data), dtype(DType::FLOAT32), n(bytes) {}
};

// The arrays of a call, in the order of the op's declaration. The declaration gives their dtypes, and the
// arrays that a result may be.
template <const Declaration& kOp>
class Arrays {
 public:
  Arrays(const Checks& checks, const Sized (&arrays)[kOp.arrays()]) : checks_(checks) {
    dtype_ = kOp.arguments[kOp.first()].kind == Kind::own ? arrays[place(kOp.first())].dtype : DType::FLOAT32;
    for (size_t i = 0; i < kOp.count; ++i)
      if (kOp.arguments[i].is_array()) used_[place(i)] = check(i, arrays[place(i)]);
  }

  const Used& operator[](size_t array) const { return used_[array]; }

  // The memory for a result, which must not overlap `other` either.
  template <size_t kResult = 0>
  char* result(const char* name, Output out, int64_t n, const Used& other = {}) const {
    const Used to = checks_.input(name, {out.data, out.dtype}, n, {dtype_});
    for (size_t i = 0; i < kOp.count; ++i)
      if (kOp.arguments[i].is_array()) checks_.apart(to, used_[place(i)], kOp.in_place(i, kResult));
    checks_.apart(to, other);
    return const_cast<char*>(to.begin);
  }

 private:
  static constexpr size_t place(size_t argument) {
    size_t before = 0;
    for (size_t i = 0; i < argument; ++i) before += kOp.arguments[i].is_array();
    return before;
  }

  Used check(size_t i, const Sized& array) const {
    const Argument& argument = kOp.arguments[i];
    const auto input = [&](std::initializer_list<DType> dtypes) {
      return checks_.input(argument.name, {array.data, array.dtype}, array.n, dtypes);
    };
    if (argument.kind == Kind::stored || argument.kind == Kind::quantized)
      return checks_.bytes(argument.name, array.data, array.n);
    if (argument.kind == Kind::mask)
      return input({DType::BOOL, DType::FLOAT32, DType::FLOAT16, DType::BFLOAT16});
    if (argument.kind == Kind::any_float || i == kOp.first()) return input(Checks::kFloats);
    if (argument.axes.leads) return input({dtype_});
    return input({dtype_, DType::FLOAT32});
  }

  const Checks& checks_;
  DType dtype_;  // of the op's own arrays
  Used used_[kOp.arrays()];
};

}  // namespace airllm::backend
