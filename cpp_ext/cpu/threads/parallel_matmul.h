// Multithreaded products of two matrices: out (m, n) = a (m, k) @ b (k, n), dense, of one dtype.
#pragma once
#include <cstring>

#include "../kernels.h"
#include "buffer_pool.h"
#include "parallel.h"

namespace cpu::threaded {

constexpr int64_t kFewRows = 8;  // up to here a product reads b as stored: see ops/gemv.inl

struct Product {
  DType dtype;
  char* out;
  const char *a, *b;
  int64_t m, n, k;

  // In elements of an elementwise op: the memory that is read, and the arithmetic.
  int64_t work() const { return k * (m + n) / 4 + m * n * k / 16; }
};

// Up to eight rows: threads share columns of b, or its rows. A thread's rows are contiguous in memory, which
// makes reading fast; with one row of a, reading sets the speed. Columns need no sums across threads.
inline bool shares_columns(const Product& p) {
  if (p.m == 1 && 4 * p.k >= p.n && p.k >= 256 * most_threads()) return false;
  return p.n >= 1024;
}

inline void matmul_few_rows(const Kernels& kernels, const Product& p) {
  const bool by_columns = shares_columns(p);
  const int64_t items = by_columns ? p.n : p.k, step = by_columns ? 64 : 128, size = itemsize(p.dtype);
  const auto part_of = [&](float* totals, int64_t begin, int64_t end) {
    if (!by_columns) return kernels.few_rows[p.dtype](totals, p.a, p.b, {p.m, p.n, p.k, 0, p.n, begin, end});
    kernels.few_rows[p.dtype](totals, p.a, p.b, {p.m, p.n, p.k, begin, end, 0, p.k});
    for (int64_t i = 0; i < p.m; ++i)
      kernels.sum_parts[p.dtype](p.out + (i * p.n + begin) * size, totals + i * (end - begin), 1,
                                 end - begin);
  };
  const int team = parts(p.work(), 1, std::max<int64_t>(p.work() * step / items, 1));
  if (team == 1 && p.m * p.n <= 2048) {
    float totals[2048];
    part_of(totals, 0, items);
    if (!by_columns) kernels.sum_parts[p.dtype](p.out, totals, 1, p.m * p.n);
    return;
  }
  const int64_t count = std::min(pieces(team, p.work()), (items + step - 1) / step);
  const Workspace totals((by_columns ? 1 : count) * p.m * p.n * sizeof(float));
  const auto of_piece = [&](int64_t piece, int64_t begin) {
    return reinterpret_cast<float*>(totals.data()) + (by_columns ? begin : piece * p.n) * p.m;
  };
  parallel(items, step, team, count, [&](int64_t begin, int64_t end, int64_t piece, int) {
    part_of(of_piece(piece, begin), begin, end);
  });
  if (!by_columns) kernels.sum_parts[p.dtype](p.out, of_piece(0, 0), count, p.m * p.n);
}

inline void matmul_many_rows(const Kernels& kernels, const Product& p) {
  const bool by_columns = p.n >= p.m;
  const int64_t items = by_columns ? p.n : p.m, step = 32;
  const int team = parts(items, (by_columns ? p.m : p.n) * p.k / 4 + 1, step);
  const Workspace workspaces(kernels.matmul_workspace * team);
  std::atomic<size_t> next{0};
  parallel(items, step, team, [&](int64_t begin, int64_t end) {
    MatmulPart part{p.n, p.k, 0, p.m, 0, p.n};
    (by_columns ? part.n0 : part.m0) = begin;
    (by_columns ? part.n1 : part.m1) = end;
    kernels.matmul[p.dtype](p.out, p.a, p.b, part,
                            reinterpret_cast<float*>(workspaces.data() + next++ * kernels.matmul_workspace));
  });
}

inline void matmul(const Kernels& kernels, const Product& p) {
  if (!p.m || !p.n) return;
  if (!p.k) return void(std::memset(p.out, 0, p.m * p.n * itemsize(p.dtype)));  // empty sums
  p.m <= kFewRows ? matmul_few_rows(kernels, p) : matmul_many_rows(kernels, p);
}

}  // namespace cpu::threaded
