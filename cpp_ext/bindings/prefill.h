// Products of many rows with a weight as it is stored: cpu/prefill.h.
#pragma once
#include "matmul.h"

namespace [[gnu::visibility("hidden")]] ops {

// Rows of x as int8 first, all of them, then the product by rows of the weight.
inline void prefill_by_bytes(cpu::Format format, const Array& out, const Array& x, const char* weight,
                             const cpu::PrefillPart& all) {
  const cpu::PrefillKernels& kernels = active.load()->prefill;
  const int64_t strips = (all.m + kernels.rows - 1) / kernels.rows, step = kernels.columns;
  const int team = cpu::parts(all.n, all.m * all.k / 16 + 1, step);
  const int64_t each = (kernels.workspace_bytes(format, all.k) + 63) / 64 * 64;
  const results::Workspace workspace(each * team + strips * kernels.strip_bytes(format, all.k));
  char* const rows = workspace.data() + each * team;
  std::atomic<int64_t> next{0};
  const py::gil_scoped_release unlocked;
  cpu::parallel(strips, 1, cpu::parts(strips, all.k * kernels.rows, 1), [&](int64_t begin, int64_t end) {
    kernels.quantize[x.dtype](format, rows, x.data, all.m, all.k, begin, end);
  });
  cpu::parallel(all.n, step, team, [&](int64_t begin, int64_t end) {
    kernels.product(format, out.data, x.dtype, rows, weight, {all.m, all.n, all.k, begin, end},
                    workspace.data() + next++ * each);
  });
}

inline void prefill_by_floats(cpu::Format format, const Array& out, const Array& x, const char* weight,
                              const cpu::PrefillPart& all) {
  const cpu::Kernels& kernels = *active.load();
  const int64_t step = 32;
  const int team = cpu::parts(all.n, all.m * all.k / 4 + 1, step);
  const results::Workspace workspaces(kernels.matmul_workspace * team);
  std::atomic<int64_t> next{0};
  const py::gil_scoped_release unlocked;
  cpu::parallel(all.n, step, team, [&](int64_t begin, int64_t end) {
    kernels.prefill.float_product[x.dtype](
        format, out.data, x.data, weight, {all.m, all.n, all.k, begin, end},
        reinterpret_cast<float*>(workspaces.data() + next++ * kernels.matmul_workspace));
  });
}

// A dense (rows, columns) array of x's dtype on someone else's memory.
inline py::object matrix_of(const Array& like, const char* data, int64_t rows, int64_t columns) {
  const py::ssize_t shape[] = {rows, columns};
  return steal(
      results::new_array(py::detail::array_proxy(like.object)->descr, 2, shape, const_cast<char*>(data)));
}

inline void prefill_by_numpy(const Array& out, const Array& x, const char* weight, int64_t m, int64_t n,
                             int64_t k) {
  const py::object rows = matrix_of(x, x.data, m, k), result = matrix_of(x, out.data, m, n),
                   columns = matrix_of(x, weight, n, k).attr("T");
  numpy_matmul(rows.ptr(), columns.ptr(), result.ptr());
}

// out (m, n) = x (m, k) @ weight (n, k)^T; `out` has the dtype of x.
inline void prefill(cpu::Format format, const Array& out, const Array& x, const char* weight, int64_t m,
                    int64_t n, int64_t k) {
  if (!m || !n) return;
  if (!k) return void(std::memset(out.data, 0, out.nbytes()));  // sums of nothing
  if (format == cpu::kF32 && x.dtype == cpu::kFloat32) return prefill_by_numpy(out, x, weight, m, n, k);
  const auto by_kernel = active.load()->prefill.by_bytes(format) ? prefill_by_bytes : prefill_by_floats;
  calls.fetch_add(1, std::memory_order_relaxed);
  by_kernel(format, out, x, weight, {m, n, k, 0, n});
}

}  // namespace ops
