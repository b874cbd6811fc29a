// Rows of keys or values as stored: floats, or blocks of Q8_0.
#ifndef AIRLLM_ATTENTION_ROWS_INL
#define AIRLLM_ATTENTION_ROWS_INL
#include "../quantized/conversions.inl"
#include "attention_softmax.inl"

namespace cpu::ISA {
namespace {

struct Q8Block {
  char bytes[stored::Q8_0::kBytes];
};

void widen_blocks(float* out, const void* x, int64_t n) {
  stored::decode<stored::Q8_0>(out, static_cast<const char*>(x), n);
}
// Indexed by the format of the row.
constexpr void (*kWidenRow[kCacheFormats])(float*, const void*, int64_t) = {widen<float>, widen<Float16>,
                                                                            widen<BFloat16>, widen_blocks};

// Rows of keys or values, and the rows that follow them: while a kernel computes with the former, it
// prefetches the latter into the second-level cache.
template <class T>
struct Stream {
  static constexpr int64_t kPiece = LANES;       // columns that are read at once
  static constexpr int64_t kTogether = 1 << 30;  // columns with the same weights
  const T* rows;
  int64_t stride;
  const T* next;
  int64_t next_stride;
  INLINE const T* row(int64_t j) const { return rows + j * stride; }
  INLINE void prepare(float*, int64_t, int64_t) {}
  // A vector of row j at column i, or its first n columns.
  INLINE Vec values(int64_t j, int64_t i, int64_t n) const { return load(row(j) + i, n); }
  // The factors for these values, given the weights p.
  INLINE const float* weights(float*, const float* p, int64_t, int64_t, int64_t) const { return p; }
  // Vector x of the piece at column i of row first + j.
  INLINE Vec scaled(int64_t first, int j, int64_t i, int64_t) const { return load(row(first + j) + i); }
  INLINE void fetch(int64_t j, int64_t i, int64_t x) const {
    __builtin_prefetch(next + j * next_stride + i + x, 0, 2);
  }
  INLINE void fetch_piece(int64_t j, int64_t i) const { fetch(j, i, 0); }
  INLINE void fetch_rows(int64_t, int64_t) const {}
};

struct Product {
  INLINE Vec operator()(Vec a, Vec b) const { return a * b; }
};

// Scales are unpacked for all rows at once. They multiply the weights, which are fewer than the values.
template <>
struct Stream<Q8Block> {
  static constexpr int64_t kPiece = 32, kTogether = 32;
  const char *rows, *next;
  int64_t stride, next_stride;  // in bytes
  const float* scales;          // of block b of row j at b * kKeys + j
  INLINE Stream(const Q8Block* rows_, int64_t blocks, const Q8Block* next_, int64_t next_blocks)
      : rows(rows_->bytes),
        next(next_->bytes),
        stride(blocks * stored::Q8_0::kBytes),
        next_stride(next_blocks * stored::Q8_0::kBytes),
        scales(nullptr) {}
  INLINE void prepare(float* to, int64_t columns, int64_t keys) {
    for (int64_t b = 0; b < columns / 32; ++b) {
      Float16 each[kKeys];
      const char* p = rows + b * stored::Q8_0::kBytes;
      for (int64_t j = 0; j < keys; ++j, p += stride) each[j].bits = stored::word_at(p);
      map(to + b * kKeys, keys, Identity{}, static_cast<const Float16*>(each));
    }
    scales = to;
  }
  static INLINE int64_t place(int64_t i) { return i + (i / 32 + 1) * 2; }  // after one scale for each block
  INLINE Vec values(int64_t j, int64_t i, int64_t) const {                 // a block is whole vectors
    return stored::to_float(stored::widen_bytes(rows + j * stride + place(i)));
  }
  INLINE const float* weights(float* to, const float* p, int64_t i, int64_t rows_of_p, int64_t keys) const {
    for (int64_t at = 0; i % 32 == 0 && at < rows_of_p * kKeys; at += kKeys)
      map(to + at, keys, Product{}, p + at, scales + i / 32 * kKeys);
    return to;
  }
  INLINE Vec scaled(int64_t first, int j, int64_t i, int64_t x) const {
    return stored::to_float(stored::widen_bytes(rows + (first + j) * stride + place(i) + x)) *
           (scales + i / 32 * kKeys + first)[j];
  }
  INLINE void fetch(int64_t j, int64_t i, int64_t x) const {
    if (x == 0) __builtin_prefetch(next + j * next_stride + place(i), 0, 2);
  }
  // Separate from the arithmetic on four rows: four more addresses would exhaust the registers.
  INLINE void fetch_piece(int64_t, int64_t) const {}
  INLINE void fetch_rows(int64_t j, int64_t columns) const {
    for (int64_t r = j; r < j + 4; ++r)
      for (int64_t i = 0; i < columns; i += 32) fetch(r, i, 0);
  }
};

// q . row j, starting at column i
template <class T>
INLINE float rest_of_dot(const float* q, const Stream<T>& k, int64_t j, int64_t i, int64_t d) {
  return reduce(0.f, d - i, Plus{}, Product{}, q + i, k.row(j) + i);
}
INLINE float rest_of_dot(const float* q, const Stream<Q8Block>& k, int64_t j, int64_t i, int64_t d) {
  Vec sum = {};
  for (; i < d; i += LANES) sum += load(q + i) * k.scaled(j, 0, i / 32 * 32, i % 32);
  return across(sum, Plus{});
}

}  // namespace
}  // namespace cpu::ISA

#endif
