// Runs every CPU kernel of every instruction set that this CPU has, without Python, against definitions
// in double precision. Every array is its own heap block of its exact size, so that AddressSanitizer sees
// one element too far; without it, guard elements after the results do. Arguments name the sets that are
// run, "-" and a set whose kernels another run has checked, and "float32" if that dtype is enough. Prints
// what ran; exits 1 on a wrong value.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "../../cpp_ext/cpu/targets/isa.h"
#include "../../cpp_ext/cpu/threads/load_balance.h"
#include "../../cpp_ext/cpu/threads/parallel.h"
#include "../../cpp_ext/cpu/threads/parallel_attention.h"
#include "../../cpp_ext/cpu/threads/parallel_gemm.h"

namespace {

using cpu::BFloat16;
using cpu::DType;
using cpu::Float16;
using Reals = std::vector<double>;

int failures = 0, checks = 0;

#include "numbers.inl"
#include "stored.inl"

template <class T>
void check_map(const char* isa, const char* what, cpu::MapKernel* kernel, double (*exact)(double),
               int64_t n) {
  for (int streamed = 0; streamed < 2; ++streamed) {
    const Block<T> x = sample<T>(n);
    Block<T> out(n);
    kernel(out.data.get(), x.data.get(), n, streamed);
    Reals expected = x.values();
    for (double& v : expected) v = exact(v);
    compare(isa, what, out, expected);
  }
}

template <class T>
void check_pair(const char* isa, const char* what, cpu::PairKernel* kernel, double (*exact)(double),
                int64_t n) {
  for (int streamed = 0; streamed < 2; ++streamed) {
    const Block<T> a = sample<T>(n), b = sample<T>(n);
    Block<T> out(n);
    kernel(out.data.get(), a.data.get(), b.data.get(), n, streamed);
    Reals expected = a.values();
    for (int64_t i = 0; i < n; ++i) expected[i] = exact(expected[i]) * value(b.data[i]);
    compare(isa, what, out, expected);
  }
}

Reals softmax(Reals row) {
  double top = -INFINITY, sum = 0;
  for (double v : row) top = std::max(top, v);
  if (std::isinf(top)) return Reals(row.size());
  for (double& v : row) sum += v = std::exp(v - top);
  for (double& v : row) v /= sum;
  return row;
}

Reals rms_norm(Reals row, const Reals& weight, double eps) {
  double sum = 0;
  for (double v : row) sum += v * v;
  for (size_t i = 0; i < row.size(); ++i) row[i] *= weight[i] / std::sqrt(sum / row.size() + eps);
  return row;
}

Reals layer_norm(Reals row, const Reals& weight, const Reals& bias, double eps) {
  double mean = 0;
  for (double v : row) mean += v / row.size();
  for (double& v : row) v -= mean;
  row = rms_norm(row, weight, eps);
  for (size_t i = 0; i < row.size(); ++i) row[i] += bias[i];
  return row;
}

Reals by_rows(const Reals& x, int64_t dim, const std::function<Reals(Reals)>& f) {
  Reals all;
  for (size_t i = 0; i < x.size(); i += dim) {
    const Reals row = f(Reals(x.begin() + i, x.begin() + i + dim));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

template <class T>
cpu::AnyValues values_of(const Block<T>& block) {
  return {block.data.get(), Type<T>::dtype};
}

template <class T>
void check_norms(const cpu::Kernels& kernels, const cpu::Rows& rows) {
  constexpr DType dtype = Type<T>::dtype;
  const Block<T> x = sample<T>(rows.count * rows.dim), y = sample<T>(rows.count * rows.dim),
                 w = sample<T>(rows.dim);
  const Block<float> w32 = sample<float>(rows.dim);
  Block<T> out(x.n), total(x.n);
  const auto normed = [&](const auto& weight) {
    return [&](Reals row) { return rms_norm(row, weight.values(), 1e-3); };
  };
  if (dtype != cpu::kFloat32) {
    kernels.rows.rms_norm[dtype][false](out.data.get(), x.data.get(), w.data.get(), rows, 1e-3f);
    compare(kernels.isa, "rms_norm", out, by_rows(x.values(), rows.dim, normed(w)));
  }
  kernels.rows.rms_norm[dtype][true](out.data.get(), x.data.get(), w32.data.get(), rows, 1e-3f);
  compare(kernels.isa, "rms_norm, float32 weight", out, by_rows(x.values(), rows.dim, normed(w32)));

  kernels.rows.add_rms_norm[dtype](total.data.get(), out.data.get(), x.data.get(), y.data.get(), values_of(w),
                                   rows, 1e-3f);
  Reals sum = x.values();
  for (int64_t i = 0; i < x.n; ++i) sum[i] += value(y.data[i]);
  compare(kernels.isa, "add_rms_norm's sum", total, sum);
  compare(kernels.isa, "add_rms_norm", out, by_rows(total.values(), rows.dim, normed(w)));

  kernels.rows.layer_norm[dtype](out.data.get(), x.data.get(), values_of(w), values_of(w32), rows, 1e-3f);
  compare(kernels.isa, "layer_norm", out, by_rows(x.values(), rows.dim, [&](Reals row) {
            return layer_norm(row, w.values(), w32.values(), 1e-3);
          }));
  kernels.rows.layer_norm[dtype](out.data.get(), x.data.get(), values_of(w32), {}, rows, 1e-3f);
  compare(kernels.isa, "layer_norm without a bias", out, by_rows(x.values(), rows.dim, [&](Reals row) {
            return layer_norm(row, w32.values(), Reals(row.size()), 1e-3);
          }));
}

// Scores of rows with a mask of each kind; the middle one of three rows keeps nothing.
template <class T, class M>
void check_softmax(const cpu::Kernels& kernels, const char* what, const cpu::Rows& rows, const Block<M>& mask,
                   cpu::AnyRows given, double (*score)(double, M), float scale) {
  const Block<T> x = sample<T>(rows.count * rows.dim);
  Block<T> out(x.n);
  kernels.rows.softmax[Type<T>::dtype](out.data.get(), x.data.get(), given, rows, scale);
  Reals scores = x.values();
  for (int64_t i = 0; i < x.n; ++i)
    scores[i] = score(scores[i] * scale, mask.data[given.step ? i : i % rows.dim]);
  compare(kernels.isa, what, out, by_rows(scores, rows.dim, softmax));
}

template <class T>
void check_softmaxes(const cpu::Kernels& kernels, const cpu::Rows& rows) {
  const Block<T> mask = sample<T>(rows.count * rows.dim);
  Block<bool> keep(mask.n);
  for (int64_t i = 0; i < keep.n; ++i) keep.data[i] = i / rows.dim != 1 && i % 3;
  const auto plain = [](double s, T) { return s; };
  const auto added = [](double s, T m) { return s + value(m); };
  const auto kept = [](double s, bool k) { return k ? s : -INFINITY; };
  const int64_t bytes = rows.dim * static_cast<int64_t>(sizeof(T));
  check_softmax<T, T>(kernels, "softmax", rows, mask, {}, plain, 0.3f);
  check_softmax<T, T>(kernels, "softmax, negative scale", rows, mask, {}, plain, -0.3f);
  check_softmax<T, T>(kernels, "softmax, far apart", rows, mask, {}, plain, 1e30f);
  check_softmax<T, T>(kernels, "softmax, mask", rows, mask, {values_of(mask), bytes}, added, 0.3f);
  check_softmax<T, T>(kernels, "softmax, one mask", rows, mask, {values_of(mask), 0}, added, 0.3f);
  check_softmax<T, bool>(kernels, "softmax, bools", rows, keep, {{keep.data.get(), cpu::kBool}, rows.dim},
                         kept, 0.3f);
}

template <class T, class C>
void check_rope(const cpu::Kernels& kernels, const cpu::Rows& rows, int64_t pairs) {
  const Block<T> x = sample<T>(rows.count * rows.dim);
  const Block<C> cos = sample<C>(rows.count * pairs), sin = sample<C>(pairs);
  for (int interleaved = 0; interleaved < 2; ++interleaved) {
    Block<T> out(x.n);
    const auto step = pairs * static_cast<int64_t>(sizeof(C));
    kernels.rows.rope[interleaved][Type<T>::dtype](out.data.get(), x.data.get(), {values_of(cos), step},
                                                   {values_of(sin), 0}, rows, pairs);
    Reals expected = x.values();
    for (int64_t r = 0; r < rows.count; ++r)
      for (int64_t i = 0; i < pairs; ++i) {
        const int64_t at = r * rows.dim, a = at + (interleaved ? 2 * i : i),
                      b = interleaved ? a + 1 : a + pairs;
        const double c = value(cos.data[r * pairs + i]), s = value(sin.data[i]);
        expected[a] = value(x.data[a]) * c - value(x.data[b]) * s;
        expected[b] = value(x.data[b]) * c + value(x.data[a]) * s;
      }
    compare(kernels.isa, interleaved ? "rope of neighbours" : "rope of halves", out, expected);
  }
}

template <class T>
void check_matmul(const cpu::Kernels& kernels, int64_t m, int64_t k, int64_t n) {
  const Block<T> a = sample<T>(m * k), b = sample<T>(k * n);
  const Reals av = a.values(), bv = b.values();
  Reals exact(m * n);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t p = 0; p < k; ++p) add_row(&exact[i * n], &bv[p * n], av[i * k + p], n);
  const int64_t cut = n / 2 / 64 * 64, half = m / 2;  // in parts, as threads do it
  float* const workspace =
      static_cast<float*>(cpu::allocate_aligned(64, (kernels.matmul_workspace + 63) / 64 * 64));
  Block<T> out(m * n);
  for (const auto& [n0, n1] : {std::pair(int64_t{0}, cut), std::pair(cut, n)})
    for (const auto& [m0, m1] : {std::pair(int64_t{0}, half), std::pair(half, m)})
      if (n0 < n1 && m0 < m1)
        kernels.matmul[Type<T>::dtype](out.data.get(), a.data.get(), b.data.get(), {n, k, m0, m1, n0, n1},
                                       workspace);
  compare(kernels.isa, "matmul", out, exact);
  for (int64_t i = 0; i < m; i += 8) {  // in parts of k
    const int64_t rows = std::min(m - i, int64_t{8}), middle = k / 3;
    Block<float> totals(2 * rows * n);
    const T* const from = a.data.get() + i * k;
    kernels.few_rows[Type<T>::dtype](totals.data.get(), from, b.data.get(), {rows, n, k, 0, n, 0, middle});
    kernels.few_rows[Type<T>::dtype](totals.data.get() + rows * n, from, b.data.get(),
                                     {rows, n, k, 0, n, middle, k});
    kernels.sum_parts[Type<T>::dtype](out.data.get() + i * n, totals.data.get(), 2, rows * n);
  }
  compare(kernels.isa, "few_rows", out, exact);
  cpu::free_aligned(workspace);
}

#include "few_rows.inl"

double silu(double x) { return x / (1 + std::exp(-x)); }
constexpr double kPi = 3.14159265358979323846;
double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x))); }
double gelu_erf(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2)); }

template <class T>
void check_rows(const cpu::Kernels& kernels, int64_t count, int64_t dim) {
  for (int streamed = 0; streamed < 2; ++streamed) {
    check_norms<T>(kernels, {count, dim, streamed == 1});
    check_softmaxes<T>(kernels, {count, dim, streamed == 1});
  }
  for (int64_t pairs : {dim / 2, dim / 5}) {
    check_rope<T, T>(kernels, {count, dim, false}, pairs);
    check_rope<T, float>(kernels, {count, dim, false}, pairs);
  }
}

template <class T>
void check_elements(const cpu::Kernels& kernels, int64_t n) {
  constexpr DType dtype = Type<T>::dtype;
  const cpu::ElementKernels& elements = kernels.elements;
  check_map<T>(kernels.isa, "silu", elements.silu[dtype], silu, n);
  check_map<T>(kernels.isa, "gelu", elements.gelu[0][dtype], gelu, n);
  check_map<T>(kernels.isa, "gelu, exact", elements.gelu[1][dtype], gelu_erf, n);
  check_pair<T>(kernels.isa, "swiglu", elements.swiglu[dtype], silu, n);
  check_pair<T>(kernels.isa, "geglu", elements.geglu[0][dtype], gelu, n);
  check_pair<T>(kernels.isa, "geglu, exact", elements.geglu[1][dtype], gelu_erf, n);
}

#include "attention.inl"
#include "streams.inl"

// Whether kernels are only noted as checked: by another run, on another CPU.
bool checked_elsewhere = false;

// Whether one of these kernels was not checked before: a set that extends another one has most of its
// kernels.
template <class... Kernel>
bool is_new(const char* what, DType dtype, Kernel*... kernels) {
  static std::set<std::pair<std::string, std::vector<const void*>>> checked;
  const bool added =
      checked.insert({what + std::to_string(dtype), {reinterpret_cast<const void*>(kernels)...}}).second;
  return added && !checked_elsewhere;
}

template <class T>
void check_all(const cpu::Kernels& kernels) {
  constexpr DType dtype = Type<T>::dtype;
  if (is_new("elements and rows", dtype, kernels.elements.silu[dtype], kernels.rows.rms_norm[dtype][0])) {
    for (int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 1027}) {
      check_elements<T>(kernels, n);
      check_rows<T>(kernels, 3, n);
    }
    check_rows<T>(kernels, 1, 8193);
    check_streams<T>(kernels);
  }
  if (is_new("prefill", dtype, kernels.prefill.product, kernels.prefill.float_product[dtype]))
    check_stored<T>(kernels);
  if (is_new("few rows", dtype, kernels.stored.as_stored.linear)) check_few_rows<T>(kernels);
  if (is_new("attention", dtype, kernels.attention.few_rows[dtype])) check_attentions<T>(kernels);
  if (!is_new("matmul", dtype, kernels.matmul[dtype])) return;
  for (const auto& [m, k, n] :
       {std::tuple(1, 1, 1), std::tuple(5, 3, 7), std::tuple(13, 64, 33), std::tuple(25, 300, 65),
        std::tuple(2, 257, 130), std::tuple(200, 9, 5), std::tuple(3, 5, 1100)})
    check_matmul<T>(kernels, m, k, n);
}

void check_set(const cpu::Kernels& kernels, bool every_dtype) {
  check_all<float>(kernels);
  if (every_dtype) {
    check_all<Float16>(kernels);
    check_all<BFloat16>(kernels);
  }
  if (is_new("attention to blocks", cpu::kFloat32, kernels.attention.few_rows[cpu::kQ8_0]))
    check_attentions_to_blocks(kernels);
}

#include "threads.inl"

}  // namespace

// Of all instruction sets that run here, or of those that are named.
int main(int count, char** names) {
  const auto named = [&](const std::string& name) {
    return std::find(names + 1, names + count, name) != names + count;
  };
  checked_elsewhere = true;
  for (const cpu::Kernels* kernels : cpu::supported_sets())
    if (named(std::string("-") + kernels->isa)) check_set(*kernels, true);
  checked_elsewhere = false;
  for (const cpu::Kernels* kernels : cpu::supported_sets()) {
    if (count > 1 && !named(kernels->isa)) continue;
    const int before = checks;
    check_set(*kernels, !named("float32"));
    for (const char* set : {"neon_i8mm", "avx512_amx"})  // the next one is what it extends
      if (std::strcmp(kernels->isa, set) == 0) check_same_bits(*kernels, *cpu::supported_sets()[1]);
    std::printf("%s: %d checks\n", kernels->isa, checks - before);
  }
  check_threads();
  check_workers();
  check_products_of_many_rows_are_in_pieces();
  check_where_workers_run();
  check_balance();
  std::printf("%d passed, %d failed\n", checks - failures, failures);
  return failures ? 1 : 0;
}
