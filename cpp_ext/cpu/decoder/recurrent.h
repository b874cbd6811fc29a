// Mixers with a state instead of keys and values (DecoderLayer::recurrent), between the products of their
// input and the output matrix. Threads share channels, or heads of keys with the heads of values that have
// them. airllm/engine/layers/recurrent.py is the definition. A call may read the state that it writes.
#pragma once
#include <algorithm>
#include <cmath>

#include "decoder.h"

namespace cpu {

// What it reads and writes, of all rows: `inputs`, `gates` and `rates` are products (`rates`: of all rows,
// then steps of all rows), `mixed` is the result. `own`: memory of the thread.
struct RecurrentBuffers {
  const float *inputs, *gates, *rates;
  float *mixed, *own;
};

class __attribute__((visibility("hidden"))) RecurrentMixer {
 public:
  RecurrentMixer(const Kernels& kernels, const DecoderCall& call, const RecurrentBuffers& at)
      : kernels_(kernels), call_(call), at_(at) {}

  // This share of all.
  void mix(const DecoderLayer& layer, int64_t share, int64_t all) {
    const Recurrent& of = layer.recurrent;
    const int64_t count = of.key_heads ? of.key_heads : (of.channels + kLine - 1) / kLine;
    const int64_t begin = count * share / all, end = count * (share + 1) / all;
    for (int64_t s = 0; s < call_.sequence_count && begin < end; ++s) {
      const Sequence& sequence = call_.sequences[s];
      if (!of.key_heads)
        short_conv(layer, sequence, begin * kLine, std::min(end * kLine, of.channels));
      else
        for (int64_t head = begin; head < end; ++head) delta_rule(layer, sequence, head);
    }
  }

 private:
  static constexpr int64_t kLine = 16, kBlock = 32;
  static constexpr float kTiny = 1e-6f;  // added to squared lengths

  // Channels [first, last): gated, through the filter, and gated again.
  void short_conv(const DecoderLayer& layer, const Sequence& sequence, int64_t first, int64_t last) {
    const Recurrent& of = layer.recurrent;
    const int64_t n = last - first, tokens = sequence.tokens(), row = layer.q.n;
    const float* const from = at_.inputs + sequence.start * row + first;
    float *const inner = at_.own, *const found = inner + tokens * n;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < n; ++i)
        inner[t * n + i] = from[t * row + i] * from[t * row + 2 * of.channels + i];
    convolve(of, sequence, first, n, inner, n, found);
    float* const to = at_.mixed + sequence.start * of.channels + first;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < n; ++i)
        to[t * of.channels + i] = found[t * n + i] * from[t * row + of.channels + i];
  }

  // out (tokens, n): channels [first, first + n) of in, rows of `in_row` values, through their filters.
  void convolve(const Recurrent& of, const Sequence& sequence, int64_t first, int64_t n, const float* in,
                int64_t in_row, float* out) const {
    const float* const before = sequence.state + of.state_at + first;
    float* const after = sequence.next_state + of.state_at + first;
    const int64_t tokens = sequence.tokens(), kept = of.taps - 1;
    const auto input = [&](int64_t at) {
      return at < 0 ? before + (at + kept) * of.channels : in + at * in_row;
    };
    for (int64_t t = 0; t < tokens; ++t) {
      float* const to = out + t * n;
      std::fill_n(to, n, 0.f);
      for (int64_t tap = 0; tap < of.taps; ++tap) {
        const float *const x = input(t + tap - kept), *const by = of.filter + tap * of.channels + first;
        for (int64_t i = 0; i < n; ++i) to[i] += x[i] * by[i];
      }
    }
    for (int64_t i = 0; i < kept; ++i) {
      const float* const from = input(tokens + i - kept);
      if (from != after + i * of.channels) std::copy_n(from, n, after + i * of.channels);
    }
  }

  // A head of keys, and the heads of values that share it.
  void delta_rule(const DecoderLayer& layer, const Sequence& sequence, int64_t key_head) {
    const Recurrent& of = layer.recurrent;
    const int64_t tokens = sequence.tokens(), shared = of.value_heads / of.key_heads;
    float *const q = at_.own, *const k = q + tokens * of.key_dim, *const v = k + tokens * of.key_dim;
    activated(layer, sequence, key_head * of.key_dim, of.key_dim, q);
    activated(layer, sequence, (of.key_heads + key_head) * of.key_dim, of.key_dim, k);
    const float by = 1 / std::sqrt(static_cast<float>(of.key_dim));
    for (int64_t t = 0; t < tokens; ++t) {
      to_length(q + t * of.key_dim, of.key_dim, by);
      to_length(k + t * of.key_dim, of.key_dim, 1.f);
    }
    for (int64_t i = 0; i < shared; ++i) {
      const int64_t head = of.tiled ? i * of.key_heads + key_head : key_head * shared + i;
      const int64_t channel = 2 * of.key_heads * of.key_dim + head * of.value_dim;
      activated(layer, sequence, channel, of.value_dim, v);
      for (int64_t t = 0; t < tokens; ++t)
        token(layer, sequence, t, head, q + t * of.key_dim, k + t * of.key_dim, v + t * of.value_dim,
              v + tokens * of.value_dim);
    }
  }

  // Some channels (tokens, n) after the filter and SiLU.
  void activated(const DecoderLayer& layer, const Sequence& sequence, int64_t first, int64_t n, float* out) {
    convolve(layer.recurrent, sequence, first, n, at_.inputs + sequence.start * layer.q.n + first, layer.q.n,
             out);
    kernels_.elements.silu[kFloat32](out, out, sequence.tokens() * n, false);
  }

  // Scales x to this length.
  static void to_length(float* x, int64_t n, float length) {
    float sums[kLine] = {};
    int64_t i = 0;
    for (; i + kLine <= n; i += kLine)
      for (int64_t j = 0; j < kLine; ++j) sums[j] += x[i + j] * x[i + j];
    float sum = 0.f;
    for (; i < n; ++i) sum += x[i] * x[i];
    for (const float each : sums) sum += each;
    const float by = length / std::sqrt(sum + kTiny);
    for (i = 0; i < n; ++i) x[i] *= by;
  }

  // A token's turn at the matrix of a head. `own`: memory for two rows of values.
  void token(const DecoderLayer& layer, const Sequence& sequence, int64_t t, int64_t head, const float* q,
             const float* k, const float* v, float* own) {
    const Recurrent& of = layer.recurrent;
    const int64_t row = sequence.start + t, values = of.value_heads * of.value_dim;
    const int64_t place = of.state_at + (of.taps - 1) * of.channels + head * of.key_dim * of.value_dim;
    float* const to = sequence.next_state + place;
    const float* const from = t ? to : sequence.state + place;
    const float rate = 1 / (1 + std::exp(-at_.rates[row * of.value_heads + head]));
    const float step = at_.rates[(call_.rows + row) * of.value_heads + head] + of.step_bias[head];
    const float softplus = step > 20.f ? step : std::log1p(std::exp(step));
    const float decay = std::exp(of.decay[head] * softplus);
    float *const found = own, *const normed = own + of.value_dim;
    int64_t i = 0;
    for (; i + kBlock <= of.value_dim; i += kBlock)
      turn<kBlock>(of, from + i, to + i, q, k, v + i, rate, decay, found + i);
    for (; i < of.value_dim; ++i) turn<1>(of, from + i, to + i, q, k, v + i, rate, decay, found + i);
    kernels_.rows.rms_norm[kFloat32][1](normed, found, of.head_norm, {1, of.value_dim, false}, layer.eps);
    const int64_t at = row * values + head * of.value_dim;
    kernels_.elements.swiglu[kFloat32](at_.mixed + at, at_.gates + at, normed, of.value_dim, false);
  }

  // The same of n columns of the matrix, which stay in registers.
  template <int64_t n>
  static void turn(const Recurrent& of, const float* from, float* to, const float* q, const float* k,
                   const float* v, float rate, float decay, float* found) {
    float learned[n] = {}, answer[n] = {};
    for (int64_t row = 0; row < of.key_dim; ++row)
      for (int64_t i = 0; i < n; ++i) learned[i] += k[row] * from[row * of.value_dim + i];
    for (int64_t i = 0; i < n; ++i) learned[i] = rate * (v[i] - decay * learned[i]);
    for (int64_t row = 0; row < of.key_dim; ++row)
      for (int64_t i = 0; i < n; ++i) {
        const float kept = decay * from[row * of.value_dim + i] + k[row] * learned[i];
        to[row * of.value_dim + i] = kept;
        answer[i] += q[row] * kept;
      }
    for (int64_t i = 0; i < n; ++i) found[i] = answer[i];
  }

  const Kernels& kernels_;
  const DecoderCall& call_;
  const RecurrentBuffers at_;
};

}  // namespace cpu
