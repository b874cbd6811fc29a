// Products of a thread's few rows with weights as stored. Every thread packs the rows itself, once for all
// weights of a format.
#pragma once
#include <algorithm>

#include "../quantized/dequantized_linear.h"
#include "decoder.h"

namespace cpu {

struct Columns {
  int64_t begin, end;

  // The part of these columns that is among n columns after `before` others.
  Columns within(int64_t before, int64_t n) const {
    return {std::clamp<int64_t>(begin - before, 0, n), std::clamp<int64_t>(end - before, 0, n)};
  }
};

// The rows (rows, k) that products read. With rounding errors, the error of rounding a row to 8 bits is
// packed as another row, and products are exact to 15 bits.
struct ProductInput {
  const float* x;
  int64_t k, rows;
  bool with_rounding_error = false;
};

class __attribute__((visibility("hidden"))) DecoderProducts {
 public:
  // `packed` must hold the rows in any format, `floats` kUnpackedRows rows of weights.
  DecoderProducts(const StoredKernels& kernels, char* packed, float* floats)
      : kernels_(kernels), packed_(packed), floats_(floats) {}

  // Sets the input of the products that follow.
  void of(const ProductInput& input) {
    input_ = input;
    packed_for_ = kFormats;
    packed_interleaved_ = false;
    apart_ = false;
  }
  const ProductInput& input() const { return input_; }

  // Columns of out (the input's rows, n) = input @ matrix^T + bias.
  void multiply(const Matrix& matrix, float* out, Columns columns) {
    if (columns.begin >= columns.end) return;
    pack(matrix.format, matrix.interleaved);
    if (apart_) return multiply_each(matrix, out, columns);
    const int64_t most = has_rounding_error() ? kDecodeRows / 2 : kDecodeRows;
    for (int64_t row = 0; row < input_.rows; row += most)
      multiply(matrix, out, columns, row, std::min(most, input_.rows - row));
  }

 private:
  void multiply(const Matrix& matrix, float* out, Columns columns, int64_t row, int64_t rows) {
    const bool as_stored = packed_as_ != matrix.format;  // floats
    const ProductKernels& products = kernels_.products(matrix.interleaved && !as_stored);
    const int64_t bytes = products.packed_bytes(packed_as_, matrix.k);
    const LinearPart part{matrix.format,
                          kFloat32,
                          reinterpret_cast<char*>(out + row * matrix.n),
                          rows,
                          matrix.n,
                          matrix.k,
                          columns.begin,
                          columns.end,
                          matrix.data,
                          packed_ + (has_rounding_error() ? 2 * row : row) * bytes,
                          bytes,
                          matrix.bias,
                          has_rounding_error(),
                          matrix.interleaved};
    if (as_stored)
      linear_unpacked(kernels_, part, floats_);
    else
      products.linear(part);
  }
  // Row by row, so that a row which blocks cannot hold does not change the bits of the others.
  void multiply_each(const Matrix& matrix, float* out, Columns columns) {
    const ProductInput all = input_;
    for (int64_t i = 0; i < all.rows; ++i) {
      of({all.x + i * all.k, all.k, 1, all.with_rounding_error});
      multiply(matrix, out + i * matrix.n, columns);
    }
    of(all);
  }
  bool has_rounding_error() const { return input_.with_rounding_error && is_quantized(packed_as_); }

  // A row that int8 blocks cannot hold, such as one with a NaN, is packed as floats, without the others.
  void pack(Format format, bool interleaved) {
    if (packed_for_ == format && packed_interleaved_ == interleaved) return;
    packed_for_ = format;
    packed_interleaved_ = interleaved;
    packed_as_ = pack_as(format, kernels_.products(interleaved)) ? format : kF32;
    apart_ = packed_as_ != format && input_.rows > 1;
    if (packed_as_ != format && !apart_) pack_as(kF32, kernels_.as_stored);
  }
  bool pack_as(Format format, const ProductKernels& products) {
    const int64_t bytes = products.packed_bytes(format, input_.k);
    const bool with_error = input_.with_rounding_error && is_quantized(format);
    char* to = packed_;
    const auto pack_row = [&](const float* x, float* error) {
      const bool held = products.pack(format, to, x, input_.k, error);
      to += bytes;
      return held;
    };
    for (int64_t i = 0; i < input_.rows; ++i)
      if (!pack_row(input_.x + i * input_.k, with_error ? floats_ : nullptr) ||
          (with_error && !pack_row(floats_, nullptr)))
        return false;
    return true;
  }

  const StoredKernels& kernels_;
  char* const packed_;
  float* const floats_;
  ProductInput input_{};
  Format packed_for_ = kFormats, packed_as_ = kFormats;
  bool packed_interleaved_ = false;
  bool apart_ = false;  // the rows are packed and multiplied one at a time
};

}  // namespace cpu
