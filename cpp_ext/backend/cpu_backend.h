// The CPU backend: arguments checked, then the kernels on threads.
#pragma once
#include <array>
#include <cmath>
#include <cstring>

#include "../cpu/attention_parts.h"
#include "../cpu/choice.h"
#include "../cpu/threaded_elements.h"
#include "../cpu/threaded_formats.h"
#include "../cpu/threaded_linear.h"
#include "../cpu/threaded_matmul.h"
#include "../cpu/threaded_rows.h"
#include "checks.h"

namespace airllm::backend {

class CpuBackend : public Backend {
 public:
  CpuBackend() {
    cpu::run_alone_after_fork();
    cpu::keep_through_fork();
    try {
      cpu::choose_threads();
      kernels_ = cpu::chosen_kernels();
    } catch (const std::invalid_argument& error) {
      why_not_ = error.what();
    }
  }

  std::string get_name() const override { return "cpu"; }
  std::string why_not() const override { return why_not_; }
  std::string get_device() const override { return kernels_ ? cpu::device(*kernels_) : "CPU"; }
  int get_num_threads() const override { return cpu::most_threads(); }
  void set_num_threads(int n) override { cpu::set_num_threads(n); }

  void silu(Output out, Input x, int64_t n) const override {
    map("silu", kernels().elements.silu, out, x, n);
  }
  void gelu(Output out, Input x, int64_t n, Gelu form) const override {
    map("gelu", kernels().elements.gelu[form == Gelu::NONE], out, x, n);
  }
  void swiglu(Output out, Input gate, Input up, int64_t n) const override {
    map("swiglu", kernels().elements.swiglu, out, gate, up, n);
  }
  void geglu(Output out, Input gate, Input up, int64_t n, Gelu form) const override {
    map("geglu", kernels().elements.geglu[form == Gelu::NONE], out, gate, up, n);
  }

  void rms_norm(Output out_, Input x_, Input weight_, int64_t rows, int64_t dim, float eps) const override {
    const Checks checks("rms_norm");
    const int64_t n = checks.elements({{"rows", rows}, {"dim", dim}});
    const Used x = checks.input("x", x_, n), weight = weight_of(checks, "weight", weight_, x_, dim);
    char* const out = checks.output("out", out_, n, x_.dtype, {x}, {weight});
    cpu::threaded::rms_norm(kernels(), all_rows(x_, rows, dim), out, x.begin, values(weight_), eps);
  }

  void add_rms_norm(Output sum_, Output normed_, Input x_, Input residual_, Input weight_, int64_t rows,
                    int64_t dim, float eps) const override {
    const Checks checks("add_rms_norm");
    const int64_t n = checks.elements({{"rows", rows}, {"dim", dim}});
    const Used x = checks.input("x", x_, n), residual = checks.input("residual", residual_, n, {x_.dtype}),
               weight = weight_of(checks, "weight", weight_, x_, dim);
    char* const sum = checks.output("sum", sum_, n, x_.dtype, {x, residual}, {weight});
    const Used summed = checks.bytes("sum", sum, x.end - x.begin);
    char* const normed = checks.output("normed", normed_, n, x_.dtype, {x, residual}, {weight, summed});
    cpu::threaded::add_rms_norm(kernels(), all_rows(x_, rows, dim), sum, normed, x.begin, residual.begin,
                                values(weight_), eps);
  }

  void layer_norm(Output out_, Input x_, Input weight_, Input bias_, int64_t rows, int64_t dim,
                  float eps) const override {
    const Checks checks("layer_norm");
    const int64_t n = checks.elements({{"rows", rows}, {"dim", dim}});
    const Used x = checks.input("x", x_, n), weight = weight_of(checks, "weight", weight_, x_, dim);
    const Used bias = weight_of(checks, "bias", bias_, x_, bias_.data ? dim : 0);
    char* const out = checks.output("out", out_, n, x_.dtype, {x}, {weight, bias});
    cpu::threaded::layer_norm(kernels(), all_rows(x_, rows, dim), out, x.begin, values(weight_),
                              values(bias_), eps);
  }

  void softmax(Output out_, Input x_, int64_t rows, int64_t dim, float scale, Input mask_,
               int64_t mask_rows) const override {
    const Checks checks("softmax");
    const int64_t n = checks.elements({{"rows", rows}, {"dim", dim}});
    const Used x = checks.input("x", x_, n);
    if (!mask_.data) {
      char* const out = checks.output("out", out_, n, x_.dtype, {x});
      return cpu::threaded::softmax(kernels(), all_rows(x_, rows, dim), out, x.begin, scale);
    }
    if (mask_rows < 1 || rows % mask_rows)
      checks.wrong_value("mask_rows", mask_rows, "a divisor of rows=" + std::to_string(rows));
    const Used mask = checks.input("mask", mask_, mask_rows * dim, kMasks);
    char* const out = checks.output("out", out_, n, x_.dtype, {x}, {mask});
    const cpu::Walk<1> walk = repeated<1>(rows / mask_rows, mask_rows, {dim * size_of(mask_.dtype)});
    cpu::threaded::softmax(kernels(), all_rows(x_, rows, dim), out, x.begin, scale, values(mask_), walk);
  }

  void apply_rope(Output out_, Input x_, Input cos_, Input sin_, int64_t heads, int64_t positions,
                  int64_t dim, int64_t pairs, bool interleaved) const override {
    const Checks checks("apply_rope");
    const int64_t n = checks.elements({{"heads", heads}, {"positions", positions}, {"dim", dim}});
    const int64_t angles = checks.elements({{"positions", positions}, {"pairs", pairs}});
    if (pairs > dim / 2) checks.wrong_value("pairs", pairs, "at most half of dim=" + std::to_string(dim));
    const Used x = checks.input("x", x_, n), cos = checks.input("cos", cos_, angles),
               sin = checks.input("sin", sin_, angles);
    char* const out = checks.output("out", out_, n, x_.dtype, {x}, {cos, sin});
    const cpu::Walk<2> walk =
        repeated<2>(heads, positions, {pairs * size_of(cos_.dtype), pairs * size_of(sin_.dtype)});
    cpu::threaded::apply_rope(kernels(), all_rows(x_, heads * positions, dim), out, x.begin, values(cos_),
                              values(sin_), walk, pairs, interleaved);
  }

  void matmul(Output out_, Input a_, Input b_, int64_t m, int64_t n, int64_t k) const override {
    const Checks checks("matmul");
    const Used a = checks.input("a", a_, checks.elements({{"m", m}, {"k", k}})),
               b = checks.input("b", b_, checks.elements({{"k", k}, {"n", n}}), {a_.dtype});
    char* const out = checks.output("out", out_, checks.elements({{"m", m}, {"n", n}}), a_.dtype, {}, {a, b});
    cpu::threaded::matmul(kernels(), {cpu::DType(a_.dtype), out, a.begin, b.begin, m, n, k});
  }

  void linear(Output out_, Input x_, Weight weight_, Input bias_, int64_t m, int64_t n,
              int64_t k) const override {
    const Checks checks("linear");
    const cpu::Format format = checks.format(weight_.format);
    checks.elements({{"n", n}, {"k", k}});
    const Used x = checks.input("x", x_, checks.elements({{"m", m}, {"k", k}})),
               weight = checks.bytes("weight", weight_.data, n * checks.row_bytes(format, k)),
               bias = checks.input("bias", bias_, bias_.data ? n : 0);
    char* const out =
        checks.output("out", out_, checks.elements({{"m", m}, {"n", n}}), x_.dtype, {}, {x, weight, bias});
    std::vector<float> wide(bias_.data ? n : 0);
    kernels().stored.widen(cpu::DType(bias_.dtype), wide.data(), bias.begin, wide.size());
    cpu::threaded::linear(kernels(), {cpu::DType(x_.dtype), out, x.begin, format, weight.begin,
                                      bias_.data ? wide.data() : nullptr, m, n, k});
  }

  void attention(Output out_, Input q_, Input k_, Input v_, const AttentionShape& shape,
                 const AttentionOptions& options) const override;

  void quantize(void* blocks_, const char* format_, Input x_, int64_t rows, int64_t k) const override {
    const Checks checks("quantize");
    const cpu::Format format = checks.format(format_, true);
    const int64_t n = checks.elements({{"rows", rows}, {"k", k}});
    const Used x = checks.input("x", x_, n),
               blocks = checks.bytes("blocks", blocks_, rows * checks.row_bytes(format, k));
    checks.apart(blocks, x);
    cpu::threaded::quantize(kernels().stored, format, static_cast<char*>(blocks_), cpu::DType(x_.dtype),
                            x.begin, n);
  }

  void dequantize(float* out_, Weight weight_, int64_t rows, int64_t k) const override {
    const Checks checks("dequantize");
    const cpu::Format format = checks.format(weight_.format);
    const int64_t n = checks.elements({{"rows", rows}, {"k", k}});
    const Used weight = checks.bytes("weight", weight_.data, rows * checks.row_bytes(format, k));
    checks.output("out", out_, n, DType::FLOAT32, {}, {weight});
    cpu::threaded::dequantize(kernels().stored, format, out_, weight.begin, n);
  }

 private:
  static constexpr std::initializer_list<DType> kMasks = {DType::BOOL, DType::FLOAT32, DType::FLOAT16,
                                                          DType::BFLOAT16};

  const cpu::Kernels& kernels() const {
    if (!kernels_) throw std::runtime_error("backend 'cpu' cannot run here: " + why_not_);
    return *kernels_;
  }

  static int64_t size_of(DType dtype) { return cpu::itemsize(cpu::DType(dtype)); }
  static cpu::AnyValues values(Input in) { return {in.data, cpu::DType(in.dtype)}; }
  static cpu::threaded::AllRows all_rows(Input x, int64_t rows, int64_t dim) {
    return {cpu::DType(x.dtype), rows, dim};
  }
  static Used weight_of(const Checks& checks, const char* name, Input weight, Input x, int64_t dim) {
    return checks.input(name, weight, dim, {x.dtype, DType::FLOAT32});
  }

  // Rows that some arrays have in common, `times` after each other: bytes from one to the next of each array.
  template <size_t N>
  static cpu::Walk<N> repeated(int64_t times, int64_t rows, const std::array<int64_t, N>& bytes) {
    const int64_t shape[] = {times, rows};
    std::array<cpu::AxisSteps, N> steps;
    for (size_t i = 0; i < N; ++i) {
      steps[i][0] = 0;
      steps[i][1] = bytes[i];
    }
    return {2, shape, steps};
  }

  template <class Kernel>
  static void map(const char* op, Kernel* const* kernels, Output out_, Input x_, int64_t n) {
    const Checks checks(op);
    const Used x = checks.input("x", x_, checks.elements({{"n", n}}));
    char* const out = checks.output("out", out_, n, x_.dtype, {x});
    cpu::threaded::map(kernels[int(x_.dtype)], cpu::DType(x_.dtype), out, x.begin, n);
  }
  template <class Kernel>
  static void map(const char* op, Kernel* const* kernels, Output out_, Input gate_, Input up_, int64_t n) {
    const Checks checks(op);
    const Used gate = checks.input("gate", gate_, checks.elements({{"n", n}})),
               up = checks.input("up", up_, n, {gate_.dtype});
    char* const out = checks.output("out", out_, n, gate_.dtype, {gate, up});
    cpu::threaded::map(kernels[int(gate_.dtype)], cpu::DType(gate_.dtype), out, gate.begin, up.begin, n);
  }

  const cpu::Kernels* kernels_ = nullptr;
  std::string why_not_;
};

// The members of a call of attention, as its kernels take them.
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
  if (kv_heads ? heads % kv_heads : heads)
    checks.wrong_value("heads", heads, "a multiple of kv_heads=" + std::to_string(kv_heads));
  if (shape.capacity && shape.capacity < shape.keys)
    checks.wrong_value("capacity", shape.capacity, "0, or keys=" + std::to_string(shape.keys) + " or more");
  if (options.softcap && !(*options.softcap > 0))
    checks.wrong("softcap", "value " + std::to_string(*options.softcap), "more than 0");
  if (options.window && *options.window < 1) checks.wrong_value("window", *options.window, "1 or more");
}

inline void CpuBackend::attention(Output out_, Input q_, Input k_, Input v_, const AttentionShape& shape,
                                  const AttentionOptions& options) const {
  const Checks checks("attention");
  check(checks, shape, options);
  const int64_t capacity = shape.capacity ? shape.capacity : shape.keys;
  const int64_t pairs = checks.elements({{"batch", shape.batch}, {"kv_heads", shape.kv_heads}});
  const int64_t rows =
      checks.elements({{"batch", shape.batch}, {"heads", shape.heads}, {"queries", shape.queries}});
  const int64_t kept = checks.elements({{"batch and kv_heads", pairs}, {"capacity", capacity}});
  const Used q = checks.input("q", q_, checks.elements({{"rows of q", rows}, {"dim", shape.dim}})),
             k = checks.input("k", k_, checks.elements({{"rows of k", kept}, {"dim", shape.dim}})),
             v = checks.input("v", v_, checks.elements({{"rows of v", kept}, {"value_dim", shape.value_dim}}),
                              {k_.dtype}),
             mask = checks.input("mask", options.mask, options.mask.data ? shape.queries * shape.keys : 0,
                                 kMasks);
  const int64_t n = rows * shape.value_dim;
  char* const out = checks.output("out", out_, n, q_.dtype, {}, {q, k, v, mask});
  if (!n) return;
  if (!shape.keys) return void(std::memset(out, 0, n * size_of(q_.dtype)));  // averages of nothing
  const cpu::Attention all = attention_of(shape, options, q_.dtype, k_.dtype);
  const auto each = [&](const Used& used) { return (used.end - used.begin) / pairs; };
  cpu::threaded::attention(kernels().attention, all, pairs, [&](int64_t i) -> cpu::AttentionHead {
    return {q.begin + i * each(q), k.begin + i * each(k), v.begin + i * each(v), mask.begin,
            out + i * (n / pairs * size_of(q_.dtype))};
  });
}

}  // namespace airllm::backend
