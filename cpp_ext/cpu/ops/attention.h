// The interface of the CPU attention kernels. attention.inl has the kernels.
#pragma once
#include <optional>

#include "../dtypes.h"
#include "../quantized/formats.h"

namespace cpu {

constexpr int kCacheFormats = kQ8_0 + 1;  // in which keys and values may be stored: the floats and Q8_0

// Keys are cut into pieces at fixed positions of the sequence, and the results of the pieces are merged in
// order. So the bits of a query's result depend on its keys alone: not on the number of threads, nor on the
// queries that are computed with it. A piece costs a row about as much as ten keys.
constexpr int64_t kFewRowsPiece = 256, kPanelPiece = 1024;

// What all heads of a call share. Strides are in elements; those of quantized keys and values are in blocks.
// The last axes are contiguous.
struct Attention {
  int64_t heads;       // query heads that share a key-value head
  int64_t t, s, d, e;  // queries, keys, length of a query, length of a value
  int64_t q_head, q_row, k_row, v_row, out_head, out_row;
  int64_t mask_head, mask_row, mask_key;  // mask_key is 1, or 0 for a mask that is the same for all keys
  DType q_type, mask_type;                // the result has the type of q
  Format kv_format;
  float scale, softcap;  // softcap 0: none
  int64_t low, high;     // query i sees the keys j with i + low <= j <= i + high
  int64_t origin;        // position of the first key in its sequence: a multiple of kFewRowsPiece

  int64_t rows() const { return heads * t; }

  // Sets which keys a query sees: at most `window` keys and, if `causal`, none after itself.
  void see(bool causal, std::optional<int64_t> window) {
    const int64_t itself = s - t;  // the last query is at the position of the last key
    high = causal ? itself : s;
    low = window && *window < s + t ? itself - *window + 1 : -t;
  }
};

// One key-value head of one batch member, with the query heads that share it. Row r is query r / heads of
// head r % heads.
struct AttentionHead {
  const char *q, *k, *v, *mask;  // mask may be null
  char* out;
  const float* sinks = nullptr;  // of each of its query heads: a score without a value
};

// Rows [row, row + rows) with keys [key, key_end). If other parts have the other keys, `sums` receives for
// each row e sums of values, the largest score, and the sum of the exponentials.
struct AttentionPart {
  int64_t row, rows, key, key_end;
  float* sums;
};

using AttentionKernel = void(const Attention& all, const AttentionHead& head, const AttentionPart& part,
                             float* workspace);

struct AttentionKernels {
  int64_t few, panel;                          // rows: up to `few` at once, or whole panels
  AttentionKernel* few_rows[kCacheFormats];    // reads keys and values as stored: by their format
  AttentionKernel* panel_rows;                 // many rows use the same keys and values
  int64_t (*workspace)(const Attention& all);  // floats that a part needs
  // Writes rows [row, row + rows) from the sums of `parts` parts.
  void (*merge)(const Attention& all, const AttentionHead& head, int64_t row, int64_t rows, float* sums,
                int64_t parts);
  // out (rows) = matrix (rows, d) x (d), and out (d) += weights (rows) matrix (rows, d). All are float32 but
  // the matrix, whose type is the index. x is padded with zeros to whole vectors, and the second out has room
  // for them.
  void (*scores[kDTypes])(float* out, const float* x, const void* matrix, int64_t stride, int64_t rows,
                          int64_t d);
  void (*add_rows[kDTypes])(float* out, const float* weights, const void* matrix, int64_t stride,
                            int64_t rows, int64_t d);
  void (*widen[kMaskDTypes])(float* out, const void* x, int64_t n);  // a mask's bool becomes 0 or -inf
  void (*narrow[kDTypes])(void* out, const float* x, int64_t n, float scale);
  void (*cap)(float* x, int64_t n, float softcap);  // in place: softcap tanh(x / softcap)
};

}  // namespace cpu
