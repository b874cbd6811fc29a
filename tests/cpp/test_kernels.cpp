// Runs every CPU kernel of every instruction set that this CPU has, without Python, against definitions
// in double precision. Every array is its own heap block of its exact size, so that AddressSanitizer sees
// one element too far; without it, guard elements after the results do. Arguments name the sets that are
// run, and "float32" if that dtype is enough. Prints what ran; exits 1 on a wrong value.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "../../cpp_ext/cpu/targets/isa.h"
#include "../../cpp_ext/cpu/threads/load_balance.h"
#include "../../cpp_ext/cpu/threads/parallel.h"
#include "../../cpp_ext/cpu/threads/parallel_attention.h"

namespace {

using cpu::BFloat16;
using cpu::DType;
using cpu::Float16;
using Reals = std::vector<double>;

int failures = 0, checks = 0;

// Conversions by arithmetic, apart from what the kernels do with bits.
double value(float v) { return v; }
double value(Float16 v) {
  const int exponent = v.bits >> 10 & 31, fraction = v.bits & 1023;
  const double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                           : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                          : std::ldexp(fraction, -24);
  return v.bits >> 15 ? -magnitude : magnitude;
}
double value(BFloat16 v) {
  const uint32_t bits = uint32_t{v.bits} << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

template <class T>
struct Type;
template <>
struct Type<float> {
  static constexpr DType dtype = cpu::kFloat32;
  static constexpr double tolerance = 1e-5, step = 0x1p-149;  // between the least numbers
  static float made(double v) { return static_cast<float>(v); }
};
template <>
struct Type<Float16> {
  static constexpr DType dtype = cpu::kFloat16;
  static constexpr double tolerance = 2e-3, step = 0x1p-24;
  static Float16 made(double v) {  // truncates: any value will do for an input
    if (v == 0) return {0};
    int exponent;
    const double fraction = std::frexp(std::fabs(v), &exponent);
    const int biased = std::max(exponent + 14, 0);
    const auto bits =
        static_cast<uint16_t>(biased << 10 | (biased ? static_cast<int>(fraction * 2048) & 1023 : 0));
    return {static_cast<uint16_t>(bits | (v < 0 ? 0x8000 : 0))};
  }
};
template <>
struct Type<BFloat16> {
  static constexpr DType dtype = cpu::kBFloat16;
  static constexpr double tolerance = 1e-2, step = 0x1p-133;
  static BFloat16 made(double v) {
    const auto f = static_cast<float>(v);
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return {static_cast<uint16_t>(bits >> 16)};
  }
};

// Exactly n elements on the heap.
template <class T>
struct Block {
  std::unique_ptr<T[]> data;
  int64_t n;
  explicit Block(int64_t n_) : data(new T[n_]), n(n_) {}
  Reals values() const {
    Reals all(n);
    for (int64_t i = 0; i < n; ++i) all[i] = value(data[i]);
    return all;
  }
};

template <class T>
Block<T> sample(int64_t n) {
  static uint64_t state = 1;
  Block<T> block(n);
  for (int64_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    block.data[i] = Type<T>::made((static_cast<double>(state >> 40) / (1 << 23) - 1) * 4);
  }
  return block;
}

template <class T>
void compare(const char* isa, const char* what, const Block<T>& got, const Reals& exact,
             double within = Type<T>::tolerance) {
  double scale = 1e-30, worst = 0;
  for (double e : exact) scale = std::max(scale, std::fabs(e));
  for (int64_t i = 0; i < got.n; ++i) {
    const double difference = std::fabs(value(got.data[i]) - exact[i]);
    const double error = difference <= Type<T>::step / 2 ? 0 : difference / scale;
    worst = error > worst || std::isnan(error) ? error : worst;
  }
  ++checks;
  if (worst <= within) return;
  ++failures;
  std::printf("WRONG: %s %s, dtype %d, %lld elements: error %g\n", isa, what, Type<T>::dtype,
              static_cast<long long>(got.n), worst);
}

void expect(bool holds, const char* what) {
  ++checks;
  if (holds) return;
  ++failures;
  std::printf("WRONG: %s\n", what);
}

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
    for (int64_t p = 0; p < k; ++p)
      for (int64_t j = 0; j < n; ++j) exact[i * n + j] += av[i * k + p] * bv[p * n + j];
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

// Gives the scales and offsets of a block a moderate exponent: others would make NaN of all.
void set_exponents(cpu::Format format, uint8_t* block) {
  static const std::map<cpu::Format, std::vector<int>> halves = {
      {cpu::kF32, {}},      {cpu::kF16, {}},        {cpu::kBF16, {}},    {cpu::kQ4_1, {0, 2}},
      {cpu::kQ5_1, {0, 2}}, {cpu::kQ2_K, {80, 82}}, {cpu::kQ3_K, {108}}, {cpu::kQ4_K, {0, 2}},
      {cpu::kQ5_K, {0, 2}}, {cpu::kQ6_K, {208}},    {cpu::kMXFP4, {}},   {cpu::kIQ1_M, {}},
      {cpu::kTQ1_0, {52}},  {cpu::kTQ2_0, {64}}};
  const auto found = halves.find(format);
  for (int at : found == halves.end() ? std::vector<int>{0} : found->second)
    block[at + 1] = 0x20 | (block[at + 1] & 0x83);
  if (format == cpu::kMXFP4) block[0] = 0x78 | (block[0] & 3);
  if (format == cpu::kIQ1_M) {  // the upper two of four nibbles of a float16
    block[55] = 0x20 | (block[55] & 0x8f);
    block[53] &= 0x3f;
  }
}

// Blocks of any bytes, but for these exponents.
Block<uint8_t> stored(cpu::Format format, int64_t n, int64_t k) {
  const int bytes = cpu::kBlocks[format].bytes;
  const int64_t blocks = n * k / cpu::kBlocks[format].values;
  Block<uint8_t> all(blocks * bytes);
  const Block<float> random = sample<float>(all.n), values = sample<float>(blocks);
  for (int64_t i = 0; i < all.n; ++i)
    all.data[i] = static_cast<uint8_t>(static_cast<int>(random.data[i] * 63 + 128));
  for (int64_t b = 0; b < blocks; ++b) set_exponents(format, &all.data[b * bytes]);
  for (int64_t i = 0; i < blocks; ++i) {
    const Float16 half = Type<Float16>::made(values.data[i]);
    const BFloat16 brain = Type<BFloat16>::made(values.data[i]);
    if (format == cpu::kF32) std::memcpy(&all.data[4 * i], &values.data[i], 4);
    if (format == cpu::kF16) std::memcpy(&all.data[2 * i], &half, 2);
    if (format == cpu::kBF16) std::memcpy(&all.data[2 * i], &brain, 2);
  }
  return all;
}

// One part of a product with a stored weight, by bytes where the set can and in float32 elsewhere.
template <class T>
void multiply_stored(const cpu::Kernels& all, cpu::Format format, Block<T>& out, const Block<T>& x,
                     const Block<uint8_t>& weight, const cpu::PrefillPart& part) {
  const cpu::PrefillKernels& kernels = all.prefill;
  const DType dtype = Type<T>::dtype;
  const char* const w = reinterpret_cast<const char*>(weight.data.get());
  if (!kernels.by_bytes(format)) {
    Block<float> workspace(all.matmul_workspace / 4);
    return kernels.float_product[dtype](format, out.data.get(), x.data.get(), w, part, workspace.data.get());
  }
  const int64_t strips = (part.m + kernels.rows - 1) / kernels.rows;
  Block<char> rows(strips * kernels.strip_bytes(format, part.k));
  Block<char> workspace(kernels.workspace_bytes(format, part.k));
  kernels.quantize[dtype](format, rows.data.get(), x.data.get(), part.m, part.k, 0, strips / 2);
  kernels.quantize[dtype](format, rows.data.get(), x.data.get(), part.m, part.k, strips / 2, strips);
  kernels.product(format, out.data.get(), dtype, rows.data.get(), w, part, workspace.data.get());
}

// The weight's values (n, k): a product of it with the unit matrix, in float32. What each byte means is
// tested from Python, against gguf.
Reals values_of(const cpu::Kernels& kernels, cpu::Format format, const Block<uint8_t>& weight, int64_t n,
                int64_t k) {
  Block<float> unit(k * k), workspace(kernels.matmul_workspace / 4), transposed(k * n);
  for (int64_t i = 0; i < k * k; ++i) unit.data[i] = i % (k + 1) == 0;
  kernels.prefill.float_product[cpu::kFloat32](format, transposed.data.get(), unit.data.get(),
                                               reinterpret_cast<const char*>(weight.data.get()),
                                               {k, n, k, 0, n}, workspace.data.get());
  Reals values(n * k);
  for (int64_t i = 0; i < n * k; ++i) values[i] = transposed.data[i % k * n + i / k];
  return values;
}

#include "few_rows.inl"

template <class T>
void check_stored(const cpu::Kernels& kernels, cpu::Format format, int64_t m, int64_t n, int64_t k) {
  const Block<uint8_t> weight = stored(format, n, k);
  const Reals values = values_of(kernels, format, weight, n, k);
  const Block<T> x = exact_as_bytes<T>(m * k);
  Block<T> out(m * n);
  Reals exact(m * n);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t p = 0; p < k; ++p) exact[i * n + j] += value(x.data[i * k + p]) * values[j * k + p];
  const int64_t cut = n / 2 / 64 * 64;  // in parts, as threads do it
  multiply_stored(kernels, format, out, x, weight, {m, n, k, 0, cut});
  multiply_stored(kernels, format, out, x, weight, {m, n, k, cut, n});
  compare(kernels.isa, cpu::kBlocks[format].name, out, exact);
}

template <class T>
void check_stored(const cpu::Kernels& kernels) {
  for (int i = 0; i < cpu::kFormats; ++i) {
    const auto format = static_cast<cpu::Format>(i);
    check_stored<T>(kernels, format, 3, 1, 256);
    check_stored<T>(kernels, format, 13, 133, 256);
    if (cpu::kBlocks[format].values == 1) check_stored<T>(kernels, format, 9, 35, 301);
  }
}

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

// Whether one of these kernels was not checked before: a set that extends another one has most of its
// kernels.
template <class... Kernel>
bool is_new(const char* what, DType dtype, Kernel*... kernels) {
  static std::set<std::pair<std::string, std::vector<const void*>>> checked;
  return checked.insert({what + std::to_string(dtype), {reinterpret_cast<const void*>(kernels)...}}).second;
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

// Every item once, by however many threads.
void check_threads() {
  for (int64_t n : {0, 1, 7, 1000, 100000}) {
    std::vector<std::atomic<int>> seen(n);
    cpu::parallel(n, 16, cpu::parts(n, 100, 16), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++seen[i];
    });
    ++checks;
    for (const auto& count : seen)
      if (count != 1) {
        ++failures;
        return void(std::printf("WRONG: parallel over %lld items\n", static_cast<long long>(n)));
      }
  }
}

// Work is done though no thread comes to help, and more callers than there are jobs have theirs done.
void check_workers() {
  std::atomic<bool> go_on{false};
  std::atomic<int> held{0};
  std::thread busy([&] {  // it and every worker wait here
    cpu::on_team(3, [&](int, int) {
      ++held;
      while (!go_on) std::this_thread::yield();
    });
  });
  while (!held) std::this_thread::yield();
  std::atomic<int64_t> sum{0};
  const auto add = [&](int64_t begin, int64_t end) { sum += end - begin; };
  cpu::parallel(1000, 1, 3, add);
  expect(sum == 1000, "parallel, all workers being busy");
  go_on = true;
  busy.join();
  std::vector<std::thread> callers;
  for (int i = 0; i < 40; ++i)
    callers.emplace_back([&] {
      for (int j = 0; j < 25; ++j) cpu::parallel(1000, 1, 4, add);
    });
  for (std::thread& caller : callers) caller.join();
  expect(sum == 1001000, "parallel of many callers");
}

#ifdef __linux__
// Whether a worker comes to run where it should, after some jobs for which it has slept.
template <class Should>
bool comes_to_run(const Should& should) {
  std::atomic<bool> does{false};
  for (int tries = 0; tries < 500 && !does; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<bool> came{false};
    cpu::on_team(2, [&](int me, int) {
      cpu_set_t its;
      if (me) {
        does = !sched_getaffinity(0, sizeof its, &its) && should(its);
        came = true;
      }
      for (int looks = 0; !me && !came && looks < 100; ++looks) std::this_thread::yield();
    });
  }
  return does;
}
#endif

// A thread that was asleep is not woken behind its caller, on the same processor.
void check_where_workers_run() {
#ifdef __linux__
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) || CPU_COUNT(&mine) == 1) return;
  const auto others = [&](const cpu_set_t& its) { return CPU_COUNT(&its) == CPU_COUNT(&mine) - 1; };
  expect(comes_to_run(others), "a worker is kept off its caller's processor");
  for (int here = 0, seen = 0; here < CPU_SETSIZE && seen < 2; ++here) {
    if (!CPU_ISSET(here, &mine)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(here, &one);
    if (sched_setaffinity(0, sizeof one, &one)) return;
    ++seen;
    const auto elsewhere = [&](const cpu_set_t& its) { return !CPU_ISSET(here, &its); };
    expect(comes_to_run(elsewhere), "a worker leaves the processor to which its caller is bound");
  }
  sched_setaffinity(0, sizeof mine, &mine);
  expect(comes_to_run(others), "a worker follows a caller that is bound no longer");
#endif
}

// The size of each share of a kind of step.
Reals sizes_of_shares(cpu::Balance& balance, int team, int kind) {
  std::vector<float> begins(cpu::Balance::values(team));
  balance.shares(begins.data(), team);
  Reals sizes;
  for (int i = 0, at = kind * (team + 1); i < team; ++i) sizes.push_back(begins[at + i + 1] - begins[at + i]);
  return sizes;
}

// Calls whose shares take as long as they are large, times `costs`; other kinds take all alike.
Reals sizes_after(cpu::Balance& balance, const Reals& costs, int calls, int layers = 30) {
  constexpr int kKind = 2;
  const int team = static_cast<int>(costs.size());
  std::vector<cpu::ShareTicks> took(costs.size());
  for (int call = 0; call < calls; ++call) {
    const Reals sizes = sizes_of_shares(balance, team, kKind);
    for (int i = 0; i < team; ++i) took[i] = {{1000, 1000}}, took[i].of[kKind] = 1e6 * sizes[i] * costs[i];
    balance.learn(took.data(), team, layers);
  }
  return sizes_of_shares(balance, team, kKind);
}

bool near(const Reals& found, const Reals& expected, double tolerance) {
  for (size_t i = 0; i < expected.size(); ++i)
    if (!(std::fabs(found[i] - expected[i]) <= tolerance)) return false;
  return found.size() == expected.size();
}

void check_balance() {
  cpu::Balance balance;
  const Reals thirds(3, 1. / 3);
  expect(near(sizes_of_shares(balance, 3, 2), thirds, 1e-6), "balance, nothing known");
  expect(near(sizes_after(balance, {1, 1, 1000}, 1, 1), thirds, 1e-3), "balance, a call of one layer");
  expect(near(sizes_after(balance, {1, 1, 1000}, 1), thirds, 1. / 3 / 20), "balance, one call");
  expect(near(sizes_after(balance, {2, 1, 1}, 300), {.2, .4, .4}, 1e-3), "balance, a slow core");
  for (int other : {0, 1, 3, cpu::kStepKinds - 1})
    expect(near(sizes_of_shares(balance, 3, other), thirds, 1e-6), "balance, other kinds of steps");
  expect(near(sizes_after(balance, {1, 1, 2}, 300), {.4, .4, .2}, 1e-3), "balance, another slow core");
  const double least = .25 / 3;
  expect(sizes_after(balance, {1, 1, 1e6}, 300)[2] > .9 * least, "balance, a core that is nearly still");
  expect(near(sizes_of_shares(balance, 2, 2), {.5, .5}, 1e-6), "balance, another team");
  expect(near(sizes_after(balance, {5}, 10), {1}, 0), "balance, one thread");
}

}  // namespace

// Of all instruction sets that run here, or of those that are named.
int main(int count, char** names) {
  const auto named = [&](const char* name) {
    return std::find(names + 1, names + count, std::string(name)) != names + count;
  };
  for (const cpu::Kernels* kernels : cpu::supported_sets()) {
    if (count > 1 && !named(kernels->isa)) continue;
    const int before = checks;
    check_all<float>(*kernels);
    if (!named("float32")) {
      check_all<Float16>(*kernels);
      check_all<BFloat16>(*kernels);
    }
    if (is_new("attention to blocks", cpu::kFloat32, kernels->attention.few_rows[cpu::kQ8_0]))
      check_attentions_to_blocks(*kernels);
    if (std::strcmp(kernels->isa, "neon_i8mm") == 0) check_same_bits(*kernels, *cpu::supported_sets()[1]);
    std::printf("%s: %d checks\n", kernels->isa, checks - before);
  }
  check_threads();
  check_workers();
  check_where_workers_run();
  check_balance();
  std::printf("%d passed, %d failed\n", checks - failures, failures);
  return failures ? 1 : 0;
}
