// Products with float weights. x and the sums are float32. Each partial sum has at most kTerms terms in a
// lane before it is added to the others, so that a long sum is as accurate as a short one.
#ifndef AIRLLM_GEMV_FLOATS_INL
#define AIRLLM_GEMV_FLOATS_INL
#include "../../simd/lane_reductions.inl"
#include "operands.inl"

namespace cpu::ISA {
namespace {
namespace stored {

template <class T>
struct Floats {
  static constexpr int64_t kTerms = 256;
  static constexpr int64_t kLine = 64 / sizeof(T) < LANES ? LANES : 64 / sizeof(T);  // elements
  // Bytes that are fetched ahead in each row. The CPU does so itself, but stops at the end of a page, and
  // falls behind where each vector lies in two lines of cache: NumPy's arrays begin 16 bytes after a line.
  static constexpr int64_t kAhead = 256;
  // At least eight sums, which hide an addition's latency.
  template <int M>
  static constexpr int kRows = M == 1   ? 8
                               : M == 2 ? 4
                                        : VECTORS / 8;

  static int64_t packed_bytes(int64_t k) { return 4 * k; }
  static bool pack(char* to, const float* x, int64_t k, float* error) {
    map(reinterpret_cast<float*>(to), k, Identity{}, x);
    if (error) __builtin_memset(error, 0, sizeof(float) * k);
    return true;
  }

  template <int R, int M>
  static INLINE void dots(float (&out)[R][M], const Operands<R, M>& all) {
    Vec totals[R][M] = {};
    for (int64_t begin = 0; begin < all.k; begin += kTerms * LANES) {
      const int64_t end = begin + kTerms * LANES < all.k ? begin + kTerms * LANES : all.k;
      Vec sums[R][M] = {};
      int64_t i = begin;
      for (; i + kLine <= end; i += kLine) {
        for (int r = 0; r < R; ++r) __builtin_prefetch(all.w[r] + i * sizeof(T) + kAhead);
        for (int j = 0; j < kLine; j += LANES) add(sums, all, i + j);
      }
      for (; i + LANES <= end; i += LANES) add(sums, all, i);
      if (i < end) add_last(sums, all, i, end - i);
      for (int r = 0; r < R; ++r)
        for (int m = 0; m < M; ++m) totals[r][m] += sums[r][m];
    }
    sums_across(out, totals);
  }

 private:
  template <int R, int M>
  static INLINE void add(Vec (&sums)[R][M], const Operands<R, M>& all, int64_t i) {
    for (int r = 0; r < R; ++r) {
      const T* const from = reinterpret_cast<const T*>(all.w[r]) + i;
      const Vec w = load(from);
      for (int m = 0; m < M; ++m) sums[r][m] += w * load(reinterpret_cast<const float*>(all.x[m]) + i);
    }
  }
  template <int R, int M>
  static INLINE void add_last(Vec (&sums)[R][M], const Operands<R, M>& all, int64_t i, int64_t n) {
    for (int r = 0; r < R; ++r) {
      const Vec w = load(reinterpret_cast<const T*>(all.w[r]) + i, n);
      for (int m = 0; m < M; ++m) sums[r][m] += w * load(reinterpret_cast<const float*>(all.x[m]) + i, n);
    }
  }
};

}  // namespace stored
}  // namespace
}  // namespace cpu::ISA

#endif
