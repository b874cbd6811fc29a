// Multithreaded ops on rows.
#pragma once
#include "../kernels.h"
#include "parallel.h"
#include "strided_walk.h"

namespace cpu::threaded {

// All rows of a call: dense, of one dtype.
struct AllRows {
  DType dtype;
  int64_t count, dim;

  int64_t size() const { return count * dim; }
  int64_t row_bytes() const { return dim * itemsize(dtype); }
  Rows part(int64_t begin, int64_t end, int arrays = 2) const {
    return {end - begin, dim, arrays * count * row_bytes() > kCachedBytes};
  }
};

template <class Work>
void share_rows(const AllRows& all, const Work& work) {
  if (all.size()) share(all.count, all.dim, 1, work);
}

inline void rms_norm(const Kernels& kernels, const AllRows& all, char* out, const char* x, AnyValues weight,
                     float eps) {
  RmsNormKernel* const kernel = kernels.rows.rms_norm[all.dtype][weight.dtype == kFloat32];
  share_rows(all, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * all.row_bytes();
    kernel(out + at, x + at, weight.data, all.part(begin, end), eps);
  });
}

inline void add_rms_norm(const Kernels& kernels, const AllRows& all, char* sum, char* normed, const char* x,
                         const char* residual, AnyValues weight, float eps) {
  AddRmsNormKernel* const kernel = kernels.rows.add_rms_norm[all.dtype];
  share_rows(all, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * all.row_bytes();
    kernel(sum + at, normed + at, x + at, residual + at, weight, all.part(begin, end, 4), eps);
  });
}

// `bias` may be null.
inline void layer_norm(const Kernels& kernels, const AllRows& all, char* out, const char* x, AnyValues weight,
                       AnyValues bias, float eps) {
  LayerNormKernel* const kernel = kernels.rows.layer_norm[all.dtype];
  share_rows(all, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * all.row_bytes();
    kernel(out + at, x + at, weight, bias, all.part(begin, end), eps);
  });
}

inline void softmax(const Kernels& kernels, const AllRows& all, char* out, const char* x, float scale) {
  SoftmaxKernel* const kernel = kernels.rows.softmax[all.dtype];
  share_rows(all, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * all.row_bytes();
    kernel(out + at, x + at, {}, all.part(begin, end), scale);
  });
}

inline AnyRows rows_from(AnyValues values, int64_t offset, int64_t step) {
  return {{static_cast<const char*>(values.data) + offset, values.dtype}, step};
}

// `walk` gives the places of the rows of the mask.
inline void softmax(const Kernels& kernels, const AllRows& all, char* out, const char* x, float scale,
                    AnyValues mask, const Walk<1>& walk) {
  SoftmaxKernel* const kernel = kernels.rows.softmax[all.dtype];
  share_rows(all, [&](int64_t begin, int64_t end) {
    walk.runs(begin, end, [&](int64_t first, int64_t count, const std::array<int64_t, 1>& offsets) {
      const int64_t at = first * all.row_bytes();
      kernel(out + at, x + at, rows_from(mask, offsets[0], walk.step(0)), all.part(first, first + count),
             scale);
    });
  });
}

// `walk` gives the places of the rows of cos and sin, of `pairs` each.
inline void apply_rope(const Kernels& kernels, const AllRows& all, char* out, const char* x, AnyValues cos,
                       AnyValues sin, const Walk<2>& walk, int64_t pairs, bool interleaved) {
  RopeKernel* const kernel = kernels.rows.rope[interleaved][all.dtype];
  share_rows(all, [&](int64_t begin, int64_t end) {
    walk.runs(begin, end, [&](int64_t first, int64_t count, const std::array<int64_t, 2>& offsets) {
      const int64_t at = first * all.row_bytes();
      kernel(out + at, x + at, rows_from(cos, offsets[0], walk.step(0)),
             rows_from(sin, offsets[1], walk.step(1)), all.part(first, first + count), pairs);
    });
  });
}

}  // namespace cpu::threaded
