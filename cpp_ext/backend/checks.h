// What an op's arguments must be. Messages are as in Python: "op: argument has X, expected Y".
#pragma once
#include <airllm/backend/backends.h>

#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

#include "../cpu/dtypes.h"
#include "../cpu/names.h"
#include "../cpu/quantized.h"

namespace airllm::backend {

static_assert(int(DType::FLOAT32) == cpu::kFloat32 && int(DType::FLOAT16) == cpu::kFloat16 &&
              int(DType::BFLOAT16) == cpu::kBFloat16 && int(DType::BOOL) == cpu::kBool);

// Memory of an argument.
struct Used {
  const char* name;
  const char *begin, *end;
};

// The checks of one call; they give arguments as kernels take them.
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

  // The product of sizes, none of which is negative.
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
  // Memory that no input overlaps, but those of `in_place` may be it exactly.
  char* output(const char* name, Output out, int64_t n, DType dtype, std::initializer_list<Used> in_place,
               std::initializer_list<Used> others = {}) const {
    const Used to = memory(name, out.data, out.dtype, n, {dtype});
    for (const Used& from : in_place)
      if (from.begin != to.begin || from.end != to.end) apart(to, from, true);
    for (const Used& from : others) apart(to, from);
    return const_cast<char*>(to.begin);
  }
  void apart(const Used& out, const Used& in, bool may_be_it = false) const {
    if (in.begin < out.end && out.begin < in.end)
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
  // Bytes of rows of k values, which are whole blocks.
  int64_t row_bytes(cpu::Format format, int64_t k) const {
    const cpu::Block& block = cpu::kBlocks[format];
    if (k < 0 || k % block.values)
      wrong_value("k", k, "a multiple of " + std::to_string(block.values) + ", the block of " + block.name);
    return cpu::row_bytes(format, k);
  }

 private:
  static constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max() / 16;  // their bytes, too, fit

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

}  // namespace airllm::backend
