// The CPU backend: checks arguments and runs the kernels on threads.
#pragma once
#include <array>
#include <cmath>
#include <cstring>

#include "../cpu/targets/select.h"
#include "../cpu/threads/parallel_attention.h"
#include "../cpu/threads/parallel_elements.h"
#include "../cpu/threads/parallel_formats.h"
#include "../cpu/threads/parallel_linear.h"
#include "../cpu/threads/parallel_matmul.h"
#include "../cpu/threads/parallel_rows.h"
#include "checks.h"

namespace airllm::backend {

using namespace declared;

class CpuBackend : public Backend {
 public:
  CpuBackend() {
    cpu::run_alone_after_fork();
    cpu::keep_through_fork();
    try {
      cpu::choose_threads();
      cpu::choose_prefetch();
      kernels_ = cpu::choose_kernels();
    } catch (const std::invalid_argument& error) {
      why_not_ = error.what();
    }
  }

  std::string get_name() const override { return "cpu"; }
  std::string why_not() const override { return why_not_; }
  std::string get_device() const override { return kernels_ ? cpu::device(*kernels_) : "CPU"; }
  int get_num_threads() const override { return cpu::most_threads(); }
  void set_num_threads(int n) override { cpu::set_num_threads(n); }

  void silu(Output out, Input x, int64_t n) const override { map<kSilu>(kernels().elements.silu, out, x, n); }
  void gelu(Output out, Input x, int64_t n, Gelu form) const override {
    map<kGelu>(kernels().elements.gelu[form == Gelu::NONE], out, x, n);
  }
  void swiglu(Output out, Input gate, Input up, int64_t n) const override {
    map<kSwiglu>(kernels().elements.swiglu, out, gate, up, n);
  }
  void geglu(Output out, Input gate, Input up, int64_t n, Gelu form) const override {
    map<kGeglu>(kernels().elements.geglu[form == Gelu::NONE], out, gate, up, n);
  }

  void rms_norm(Output out_, Input x_, Input weight_, int64_t rows, int64_t dim, float eps) const override {
    const Checks checks(kRmsNorm.name);
    const int64_t n = checks.elements({{"rows", rows}, {"dim", dim}});
    const Arrays<kRmsNorm> in(checks, {{x_, n}, {weight_, dim}});
    char* const out = in.result("out", out_, n);
    cpu::threaded::rms_norm(kernels(), all_rows(x_, rows, dim), out, in[0].begin, values(weight_), eps);
  }

  void add_rms_norm(Output sum_, Output normed_, Input x_, Input residual_, Input weight_, int64_t rows,
                    int64_t dim, float eps) const override {
    const Checks checks(kAddRmsNorm.name);
    const int64_t n = checks.elements({{"rows", rows}, {"dim", dim}});
    const Arrays<kAddRmsNorm> in(checks, {{x_, n}, {residual_, n}, {weight_, dim}});
    char* const sum = in.result("sum", sum_, n);
    char* const normed = in.result<1>("normed", normed_, n, checks.bytes("sum", sum, n * size_of(x_.dtype)));
    cpu::threaded::add_rms_norm(kernels(), all_rows(x_, rows, dim), sum, normed, in[0].begin, in[1].begin,
                                values(weight_), eps);
  }

  void layer_norm(Output out_, Input x_, Input weight_, Input bias_, int64_t rows, int64_t dim,
                  float eps) const override {
    const Checks checks(kLayerNorm.name);
    const int64_t n = checks.elements({{"rows", rows}, {"dim", dim}});
    const Arrays<kLayerNorm> in(checks, {{x_, n}, {weight_, dim}, {bias_, bias_.data ? dim : 0}});
    char* const out = in.result("out", out_, n);
    cpu::threaded::layer_norm(kernels(), all_rows(x_, rows, dim), out, in[0].begin, values(weight_),
                              values(bias_), eps);
  }

  void softmax(Output out_, Input x_, int64_t rows, int64_t dim, float scale, Input mask_,
               int64_t mask_rows) const override {
    const Checks checks(kSoftmax.name);
    const int64_t n = checks.elements({{"rows", rows}, {"dim", dim}});
    if (mask_.data && (mask_rows < 1 || rows % mask_rows))
      checks.wrong_value("mask_rows", mask_rows, "a divisor of rows=" + std::to_string(rows));
    const Arrays<kSoftmax> in(checks, {{x_, n}, {mask_, mask_.data ? mask_rows * dim : 0}});
    char* const out = in.result("out", out_, n);
    if (!mask_.data)
      return cpu::threaded::softmax(kernels(), all_rows(x_, rows, dim), out, in[0].begin, scale);
    const cpu::Walk<1> walk = repeat<1>(rows / mask_rows, mask_rows, {dim * size_of(mask_.dtype)});
    cpu::threaded::softmax(kernels(), all_rows(x_, rows, dim), out, in[0].begin, scale, values(mask_), walk);
  }

  void apply_rope(Output out_, Input x_, Input cos_, Input sin_, int64_t heads, int64_t positions,
                  int64_t dim, int64_t pairs, bool interleaved) const override {
    const Checks checks(kApplyRope.name);
    const int64_t n = checks.elements({{"heads", heads}, {"positions", positions}, {"dim", dim}});
    const int64_t angles = checks.elements({{"positions", positions}, {"pairs", pairs}});
    if (!kApplyRope.requirement.holds(pairs, dim))
      checks.wrong_value("pairs", pairs, "at most half of dim=" + std::to_string(dim));
    const Arrays<kApplyRope> in(checks, {{x_, n}, {cos_, angles}, {sin_, angles}});
    char* const out = in.result("out", out_, n);
    const cpu::Walk<2> walk =
        repeat<2>(heads, positions, {pairs * size_of(cos_.dtype), pairs * size_of(sin_.dtype)});
    cpu::threaded::apply_rope(kernels(), all_rows(x_, heads * positions, dim), out, in[0].begin, values(cos_),
                              values(sin_), walk, pairs, interleaved);
  }

  void matmul(Output out_, Input a_, Input b_, int64_t m, int64_t n, int64_t k) const override {
    const Checks checks(kMatmul.name);
    const Arrays<kMatmul> in(
        checks, {{a_, checks.elements({{"m", m}, {"k", k}})}, {b_, checks.elements({{"k", k}, {"n", n}})}});
    char* const out = in.result("out", out_, checks.elements({{"m", m}, {"n", n}}));
    cpu::threaded::matmul(kernels(), {cpu::DType(a_.dtype), out, in[0].begin, in[1].begin, m, n, k});
  }

  void linear(Output out_, Input x_, Weight weight_, Input bias_, int64_t m, int64_t n,
              int64_t k) const override {
    const Checks checks(kLinear.name);
    const cpu::Format format = checks.format(weight_.format);
    checks.elements({{"n", n}, {"k", k}});
    const Arrays<kLinear> in(checks, {{x_, checks.elements({{"m", m}, {"k", k}})},
                                      {weight_, n * checks.row_bytes(format, k)},
                                      {bias_, bias_.data ? n : 0}});
    char* const out = in.result("out", out_, checks.elements({{"m", m}, {"n", n}}));
    std::vector<float> wide(bias_.data ? n : 0);
    kernels().stored.widen(cpu::DType(bias_.dtype), wide.data(), in[2].begin, wide.size());
    cpu::threaded::linear(kernels(), {cpu::DType(x_.dtype), out, in[0].begin, format, in[1].begin,
                                      bias_.data ? wide.data() : nullptr, m, n, k});
  }

  void attention(Output out_, Input q_, Input k_, Input v_, const AttentionShape& shape,
                 const AttentionOptions& options) const override;

  void quantize(void* blocks_, const char* format_, Input x_, int64_t rows, int64_t k) const override {
    const Checks checks(kQuantize.name);
    const cpu::Format format = checks.format(format_, true);
    const int64_t n = checks.elements({{"rows", rows}, {"k", k}});
    const Used blocks = checks.bytes("blocks", blocks_, rows * checks.row_bytes(format, k));
    const Arrays<kQuantize> in(checks, {{x_, n}});
    checks.apart(blocks, in[0]);
    cpu::threaded::quantize(kernels().stored, format, static_cast<char*>(blocks_), cpu::DType(x_.dtype),
                            in[0].begin, n);
  }

  void dequantize(float* out_, Weight q_, int64_t rows, int64_t k) const override {
    const Checks checks(kDequantize.name);
    const cpu::Format format = checks.format(q_.format);
    const int64_t n = checks.elements({{"rows", rows}, {"k", k}});
    const Arrays<kDequantize> in(checks, {{q_, rows * checks.row_bytes(format, k)}});
    in.result("out", out_, n);
    cpu::threaded::dequantize(kernels().stored, format, out_, in[0].begin, n);
  }

 private:
  const cpu::Kernels& kernels() const {
    if (!kernels_) throw std::runtime_error("backend 'cpu' cannot run here: " + why_not_);
    return *kernels_;
  }

  static int64_t size_of(DType dtype) { return cpu::itemsize(cpu::DType(dtype)); }
  static cpu::AnyValues values(Input in) { return {in.data, cpu::DType(in.dtype)}; }
  static cpu::threaded::AllRows all_rows(Input x, int64_t rows, int64_t dim) {
    return {cpu::DType(x.dtype), rows, dim};
  }
  // The rows of several arrays, repeated `times` times: `bytes` from one row of each array to the next.
  template <size_t N>
  static cpu::Walk<N> repeat(int64_t times, int64_t rows, const std::array<int64_t, N>& bytes) {
    const int64_t shape[] = {times, rows};
    std::array<cpu::AxisSteps, N> steps;
    for (size_t i = 0; i < N; ++i) {
      steps[i][0] = 0;
      steps[i][1] = bytes[i];
    }
    return {2, shape, steps};
  }

  template <const Declaration& kOp, class Kernel>
  static void map(Kernel* const* kernels, Output out_, Input x_, int64_t n) {
    const Checks checks(kOp.name);
    const Arrays<kOp> in(checks, {{x_, checks.elements({{"n", n}})}});
    char* const out = in.result("out", out_, n);
    cpu::threaded::map(kernels[int(x_.dtype)], cpu::DType(x_.dtype), out, in[0].begin, n);
  }
  template <const Declaration& kOp, class Kernel>
  static void map(Kernel* const* kernels, Output out_, Input gate_, Input up_, int64_t n) {
    const Checks checks(kOp.name);
    const Arrays<kOp> in(checks, {{gate_, checks.elements({{"n", n}})}, {up_, n}});
    char* const out = in.result("out", out_, n);
    cpu::threaded::map(kernels[int(gate_.dtype)], cpu::DType(gate_.dtype), out, in[0].begin, in[1].begin, n);
  }

  const cpu::Kernels* kernels_ = nullptr;
  std::string why_not_;
};

// Converts the parameters of an attention call for its kernels.
inline cpu::Attention attention_of(const AttentionShape& shape, const AttentionOptions& options, DType q,
                                   DType kv) {
  cpu::Attention all{};
  all.heads = shape.kv_heads ? shape.heads / shape.kv_heads : 0;
  all.t = shape.queries;
  all.s = shape.keys;
  all.d = all.q_row = all.k_row = shape.dim;
  all.e = all.v_row = all.out_row = shape.value_dim;
  all.q_head = shape.queries * shape.dim;
  all.out_head = shape.queries * shape.value_dim;
  all.q_type = cpu::DType(q);
  all.kv_format = cpu::Format(kv);
  all.scale = options.scale.value_or(1.f / std::sqrt(static_cast<float>(std::max<int64_t>(shape.dim, 1))));
  all.softcap = options.softcap.value_or(0.f);
  all.see(options.causal, options.window);
  if (options.mask.data) {
    all.mask_type = cpu::DType(options.mask.dtype);
    all.mask_row = shape.keys;
    all.mask_key = 1;
  }
  return all;
}

inline void check(const Checks& checks, const AttentionShape& shape, const AttentionOptions& options) {
  const int64_t heads = shape.heads, kv_heads = shape.kv_heads;
  checks.elements(
      {{"heads", heads}, {"kv_heads", kv_heads}, {"queries", shape.queries}, {"keys", shape.keys}});
  if (!kAttention.requirement.holds(heads, kv_heads))
    checks.wrong_value("heads", heads, "a multiple of kv_heads=" + std::to_string(kv_heads));
  if (shape.capacity && shape.capacity < shape.keys)
    checks.wrong_value("capacity", shape.capacity, "0, or keys=" + std::to_string(shape.keys) + " or more");
  if (options.softcap && !(*options.softcap > 0))
    checks.wrong("softcap", "value " + std::to_string(*options.softcap), "more than 0");
  if (options.window && *options.window < 1) checks.wrong_value("window", *options.window, "1 or more");
}

inline void CpuBackend::attention(Output out_, Input q_, Input k_, Input v_, const AttentionShape& shape,
                                  const AttentionOptions& options) const {
  const Checks checks(kAttention.name);
  check(checks, shape, options);
  const int64_t capacity = shape.capacity ? shape.capacity : shape.keys;
  const int64_t pairs = checks.elements({{"batch", shape.batch}, {"kv_heads", shape.kv_heads}});
  const int64_t rows =
      checks.elements({{"batch", shape.batch}, {"heads", shape.heads}, {"queries", shape.queries}});
  const int64_t kept = checks.elements({{"batch and kv_heads", pairs}, {"capacity", capacity}});
  const int64_t n_v = checks.elements({{"rows of v", kept}, {"value_dim", shape.value_dim}});
  const Arrays<kAttention> in(checks, {{q_, checks.elements({{"rows of q", rows}, {"dim", shape.dim}})},
                                       {k_, checks.elements({{"rows of k", kept}, {"dim", shape.dim}})},
                                       {v_, n_v},
                                       {options.mask, options.mask.data ? shape.queries * shape.keys : 0},
                                       {options.sinks, options.sinks.data ? shape.heads : 0}});
  checks.input("v", v_, n_v, {k_.dtype});
  const int64_t n = rows * shape.value_dim;
  char* const out = in.result("out", out_, n);
  if (!n) return;
  if (!shape.keys) return void(std::memset(out, 0, n * size_of(q_.dtype)));  // averages of no keys
  const cpu::Attention all = attention_of(shape, options, q_.dtype, k_.dtype);
  const Used q = in[0], k = in[1], v = in[2], mask = in[3];
  std::vector<float> sinks(options.sinks.data ? shape.heads : 0);
  kernels().stored.widen(cpu::DType(options.sinks.dtype), sinks.data(), in[4].begin, sinks.size());
  const auto each = [&](const Used& used) { return (used.end - used.begin) / pairs; };
  cpu::threaded::attention(kernels().attention, all, pairs, [&](int64_t i) -> cpu::AttentionHead {
    return {q.begin + i * each(q),
            k.begin + i * each(k),
            v.begin + i * each(v),
            mask.begin,
            out + i * (n / pairs * size_of(q_.dtype)),
            sinks.empty() ? nullptr : sinks.data() + i % shape.kv_heads * all.heads};
  });
}

}  // namespace airllm::backend
