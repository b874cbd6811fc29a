// A thread's work on the layers of a call. A layer has five steps, one more if a layer of the call has
// experts, two more if one has latent attention, and two more if one has an input of its own:
//   q, k, v | queries to latents | attention | values of latents | output matrix
//   | router of experts | gate, up, their product | down | gate of the input | its projection
// Every thread does small work, such as norms and the packing of rows, itself: that is faster than waiting
// for another thread. A step does not read what it writes, and does not write what the previous or the next
// step writes: x after a layer's first half, after its second and after the layer are in separate buffers.
// Logits are one more step, after all layers.
#pragma once
#include <cmath>

#include "../threads/lockstep.h"
#include "cached_attention.h"
#include "latent.h"
#include "memory.h"
#include "products.h"
#include "recurrent.h"

namespace cpu {

class __attribute__((visibility("hidden"))) DecoderThread {
 public:
  DecoderThread(const Kernels& kernels, const DecoderCall& call, const DecoderSizes& sizes,
                const DecoderMemory& at, char* memory, int me, int all)
      : kernels_(kernels),
        call_(call),
        stages_(stages(sizes)),
        all_(all),
        mine_(memory + at.shared.bytes + me * at.own.bytes),
        products_(kernels.stored, mine_ + at.packed, own(at.floats)),
        q_(shared(memory, at.q)),
        k_(shared(memory, at.k)),
        v_(shared(memory, at.v)),
        attended_(shared(memory, at.attended)),
        attention_(
            kernels, call,
            {q_, k_, v_, shared(memory, at.latent_q), attended_, shared(memory, at.sums),
             reinterpret_cast<std::atomic<int64_t>*>(memory + at.done), own(at.rotated), own(at.attention)}),
        values_(shared(memory, at.values)),
        latent_(kernels, call, products_, attention_,
                {q_, k_, shared(memory, at.made), shared(memory, at.latent_q), attended_, values_,
                 own(at.latent)}),
        recurrent_(kernels, call, {q_, k_, v_, attended_, own(at.recurrent)}) {
    change_ = call.change ? call.change : shared(memory, at.change), router_ = shared(memory, at.router);
    shared_gate_ = shared(memory, at.shared_gate), gate_ = shared(memory, at.gate),
    up_ = shared(memory, at.up);
    x_ = shared(memory, at.x), middle_ = shared(memory, at.middle), third_ = shared(memory, at.third),
    mixed_ = shared(memory, at.mixed);
    begins_ = shared(memory, at.begins);
    took_ = reinterpret_cast<ShareTicks*>(memory + at.took);
    own_x_ = own(at.own_x), normed_ = own(at.normed);
    routing_ = {reinterpret_cast<Choice*>(mine_ + at.choices), own(at.probabilities),
                reinterpret_cast<int32_t*>(mine_ + at.order)};
  }

  // The numbers of a layer's steps.
  static uint32_t first_half(const DecoderSizes& sizes) { return sizes.has_latents ? 5 : 3; }
  static uint32_t second_half(const DecoderSizes& sizes) { return sizes.experts ? 3 : 2; }
  static uint32_t steps_per_layer(const DecoderSizes& sizes) { return stages(sizes).count; }
  static uint32_t steps(const DecoderCall& call, const DecoderSizes& sizes) {
    return static_cast<uint32_t>(call.count) * steps_per_layer(sizes) + (call.ends ? 1 : 0);
  }

  // Runs one share of a step, on one thread.
  void run(uint32_t step, uint32_t share) {
    const uint64_t before = ticks();
    work(step, share);
    took_[share].of[stage_] += ticks() - before;
  }

  // After all steps, on one thread: writes x to the caller's buffer.
  void finish() {
    add_layer(call_.count - 1);
    std::copy_n(own_x_, call_.rows * call_.width, call_.x);
  }

 private:
  enum Stage : uint32_t {
    kProjections,
    kLatentQueries,
    kAttention,
    kLatentValues,
    kOutput,
    kRouter,
    kGate,
    kDown,
    kInputGate,
    kInputProjection,
    kLogits
  };
  static_assert(kLogits < kStepKinds);
  // Those of a layer, in order.
  struct Stages {
    Stage of[kLogits];
    uint32_t count = 0;
  };
  static Stages stages(const DecoderSizes& sizes) {
    Stages all;
    for (uint32_t each = 0; each < kLogits; ++each) {
      const Stage stage = Stage(each);
      const bool latent = stage == kLatentQueries || stage == kLatentValues;
      const bool input = stage == kInputGate || stage == kInputProjection;
      if ((sizes.has_latents || !latent) && (sizes.experts || stage != kRouter) && (sizes.input || !input))
        all.of[all.count++] = stage;
    }
    return all;
  }

  void work(uint32_t step, uint32_t share) {
    const int64_t number = step / stages_.count;
    const bool again = step == last_step_;  // its rows are already packed
    const bool follows = step == last_step_ + 1;
    last_step_ = step;
    share_ = share;
    stage_ = number == call_.count ? kLogits : stages_.of[step % stages_.count];
    if (stage_ == kLogits) return logits(again);
    const DecoderLayer& layer = *call_.layers[number];
    switch (stage_) {
      case kProjections:
        if (!again) {
          number ? add_layer(number - 1) : start();
          normalize(own_x_, layer.attention_norm, layer.norm, call_.rows, true);
        }
        keep(x_);
        return project(layer);
      case kLatentQueries:
        return layer.latent.kv_rank ? latent_.query(layer, heads_of(layer)) : void();
      case kLatentValues:
        return layer.latent.kv_rank ? latent_.value(layer, heads_of(layer)) : void();
      case kAttention:
        if (layer.recurrent.taps) return recurrent_.mix(layer, share_, all_);
        return UnitParts(layer, call_, share_, all_).each([&](const UnitPart& part) {
          attention_.attend(layer, part);
        });
      case kOutput:
        if (!again) products_.of({layer.latent.kv_rank ? values_ : attended_, layer.output.k, call_.rows});
        return multiply(layer.output, change_);
      case kRouter:
        return layer.experts.count ? route(layer, again) : void();
      case kGate:
        return layer.experts.count ? gate_experts(layer, number, again || follows) : gate(layer, again);
      case kDown:
        if (layer.experts.count) return add_experts(layer, routing_of(number));
        if (!again) products_.of({gate_, layer.down.k, call_.rows});
        return multiply(layer.down, change_);
      case kInputGate:
        return layer.input_gate.n ? gate_input(layer, number, again) : void();
      case kInputProjection:
        if (!layer.input_gate.n) return;
        if (!again) products_.of({gate_, layer.input_gate.n, call_.rows});
        return multiply(layer.input_projection, change_);
      case kLogits:
        return;
    }
  }

  static float* shared(char* memory, int64_t offset) { return reinterpret_cast<float*>(memory + offset); }
  float* own(int64_t offset) const { return reinterpret_cast<float*>(mine_ + offset); }

  // This share of n columns: whole cache lines, except the last. If there are few lines, the shares are
  // equal: a line more or less then matters more than the threads' differences in speed.
  Columns share(int64_t n) const {
    constexpr int64_t kLine = 16, kManyLines = 16;
    const int64_t lines = (n + kLine - 1) / kLine;
    const float* const begins = begins_ + stage_ * (all_ + 1);
    const auto begin = [&](int64_t share) {
      const int64_t line = lines < kManyLines * all_ ? lines * share / all_
                                                     : std::lrint(static_cast<float>(lines) * begins[share]);
      return std::min(n, line * kLine);
    };
    return {begin(share_), begin(share_ + 1)};
  }

  // This share of the heads.
  Columns heads_of(const DecoderLayer& layer) const {
    return {layer.heads * share_ / all_, layer.heads * (share_ + 1) / all_};
  }

  // Sets x before the first layer.
  void start() {
    if (!call_.ends) return void(std::copy_n(call_.x, call_.rows * call_.width, own_x_));
    const Matrix& table = call_.ends->embedding;
    const int64_t bytes = row_bytes(table.format, table.k);
    for (int64_t i = 0; i < call_.rows; ++i)
      kernels_.stored.dequantize(table.format, own_x_ + i * table.k, table.data + call_.tokens[i] * bytes,
                                 table.k);
    const float scale = call_.ends->embedding_scale;
    for (int64_t i = 0; i < call_.rows * table.k; ++i) own_x_[i] *= scale;
  }

  // Sets x after this layer.
  void add_layer(int64_t number) {
    const DecoderLayer& layer = *call_.layers[number];
    if (!layer.input_gate.n) {
      end_second_half(layer);
    } else {
      rms_norm(normed_, change_, layer.input_post_norm, layer.norm.eps);
      add(third_, normed_);
    }
    if (layer.output_scale) scale_values(own_x_, own_x_, call_.rows * call_.width, *layer.output_scale);
  }

  // Sets x after the feed-forward.
  void end_second_half(const DecoderLayer& layer) {
    const float* change = change_;
    if (layer.experts.dense_norm) {
      rms_norm(normed_, mixed_, layer.experts.post_norm, layer.norm.eps);
      rms_norm(own_x_, change_, layer.experts.dense_norm, layer.norm.eps);
      add(own_x_, normed_);
      change = own_x_;
    }
    add_change(middle_, change, layer.feed_forward_post_norm, layer);
  }

  // Adds the result of half a layer to x. With a norm it may be in own_x_.
  void add_change(const float* x, const float* change, const float* post_norm, const DecoderLayer& layer) {
    if (post_norm) {
      norm(change, post_norm, layer.norm, call_.rows);
      change = normed_;
    }
    if (layer.residual_scale != 1.f) {
      scale_values(normed_, change, call_.rows * call_.width, layer.residual_scale);
      change = normed_;
    }
    add(x, change);
  }

  // Sets own_x_ to x + change.
  void add(const float* x, const float* change) {
    const int64_t values = call_.rows * call_.width;
    if (x != own_x_) std::copy_n(x, values, own_x_);
    kernels_.stored.add_bias(kFloat32, reinterpret_cast<char*>(own_x_), change, 1, values);
  }

  // Of all rows; `to` is another buffer than `x`.
  void rms_norm(float* to, const float* x, const float* weight, float eps) {
    kernels_.rows.rms_norm[kFloat32][1](to, x, weight, {call_.rows, call_.width, false}, eps);
  }

  // Sets normed_ to rows of x, normalized.
  void norm(const float* x, const float* weight, const NormKind& kind, int64_t rows) {
    const Rows all{rows, call_.width, false};
    if (!kind.layer) return kernels_.rows.rms_norm[kFloat32][1](normed_, x, weight, all, kind.eps);
    const float* const bias = kind.bias ? weight + call_.width : nullptr;
    kernels_.rows.layer_norm[kFloat32](normed_, x, {weight, kFloat32}, {bias, kFloat32}, all, kind.eps);
  }

  // Sets the input of the next product; without a weight that is x itself.
  void normalize(const float* x, const float* weight, const NormKind& kind, int64_t rows,
                 bool with_rounding_error = false) {
    if (!weight) return products_.of({x, call_.width, rows, with_rounding_error});
    norm(x, weight, kind, rows);
    products_.of({normed_, call_.width, rows, with_rounding_error});
  }

  // Writes this share's columns of x for later steps.
  void keep(float* to) const {
    const Columns mine = share(call_.width);
    if (mine.begin < mine.end)
      for (int64_t at = 0; at < call_.rows * call_.width; at += call_.width)
        std::copy(own_x_ + at + mine.begin, own_x_ + at + mine.end, to + at + mine.begin);
  }

  // Threads share q, k and v as one matrix. Rounding here causes half of the rounding error of the logits,
  // and these are a tenth of a model's weights.
  void project(const DecoderLayer& layer) {
    if (layer.recurrent.taps) return project_recurrent(layer);
    const Matrix& q = layer.latent.q_a.n ? layer.latent.q_a : layer.q;
    const Matrix& k = layer.latent.kv_rank ? layer.latent.kv_a : layer.k;
    const Columns mine = share(q.n + (layer.shares ? 0 : k.n + layer.v.n));
    int64_t before = 0;
    const auto part = [&](const Matrix& matrix, float* out) {
      products_.multiply(matrix, out, mine.within(before, matrix.n));
      before += matrix.n;
    };
    part(q, q_);
    if (layer.shares) return;
    part(k, k_);
    part(layer.v, v_);
  }

  // The same of a mixer with a state.
  void project_recurrent(const DecoderLayer& layer) {
    const Recurrent& of = layer.recurrent;
    const Columns mine = share(layer.q.n + of.gate.n + of.rate.n + of.step.n);
    int64_t before = 0;
    const auto part = [&](const Matrix& matrix, float* out) {
      if (matrix.n) products_.multiply(matrix, out, mine.within(before, matrix.n));
      before += matrix.n;
    };
    part(layer.q, q_);
    part(of.gate, k_);
    part(of.rate, v_);
    part(of.step, v_ + call_.rows * of.value_heads);
  }

  // Sets x after attention, and the input of the feed-forward products, or of the router.
  void begin_second_half(const DecoderLayer& layer) {
    add_change(x_, change_, layer.attention_post_norm, layer);
    if (layer.parallel) return normalize(x_, layer.attention_norm, layer.norm, call_.rows);
    const float* const of_router = layer.experts.router_norm;
    normalize(own_x_, of_router ? of_router : layer.feed_forward_norm, layer.norm, call_.rows);
  }

  void gate(const DecoderLayer& layer, bool again) {
    if (!again) begin_second_half(layer);
    keep(middle_);
    gate(layer, layer.gate, layer.up, share(layer.feed_forward), 0);
  }

  // Columns of gate_ from value `before` on, for as many rows as the input has. `gate` may be absent.
  void gate(const DecoderLayer& layer, const Matrix& gate, const Matrix& up, Columns mine, int64_t before) {
    if (gate.data) products_.multiply(gate, gate_ + before, mine);
    products_.multiply(up, (gate.data ? up_ : gate_) + before, mine);
    if (mine.begin < mine.end)
      for (int64_t i = 0; i < products_.input().rows; ++i) {
        const int64_t at = before + i * up.n + mine.begin;
        activate(layer, gate_ + at, gate.data ? up_ + at : nullptr, mine.end - mine.begin);
      }
  }

  // Sets gate to act(gate) * up, or to act(gate) without an up.
  void activate(const DecoderLayer& layer, float* gate, float* up, int64_t n) {
    if (!up && layer.activation == kSilu) return kernels_.elements.silu[kFloat32](gate, gate, n, false);
    if (!up) return kernels_.elements.gelu[layer.activation == kGelu][kFloat32](gate, gate, n, false);
    if (layer.activation == kGelu || layer.activation == kGeluTanh)
      return kernels_.elements.geglu[layer.activation == kGelu][kFloat32](gate, gate, up, n, false);
    if (layer.activation == kSwigluClamped) clamp(layer, gate, up, n);
    kernels_.elements.swiglu[kFloat32](gate, gate, up, n, false);
  }

  // So that swiglu(gate, up) is (up + 1) * gate * sigmoid(alpha * gate) of the clamped values.
  static void clamp(const DecoderLayer& layer, float* gate, float* up, int64_t n) {
    const float alpha = layer.swiglu_alpha, limit = layer.swiglu_limit;
    for (int64_t i = 0; i < n; ++i) {
      gate[i] = alpha * (gate[i] > limit ? limit : gate[i]);
      up[i] = (std::clamp(up[i], -limit, limit) + 1) / alpha;
    }
  }

  // The layer's own input, weighted by x after the feed-forward.
  void gate_input(const DecoderLayer& layer, int64_t number, bool again) {
    if (!again) {
      end_second_half(layer);
      products_.of({own_x_, call_.width, call_.rows});
    }
    keep(third_);
    const int64_t n = layer.input_gate.n;
    const Columns mine = share(n);
    products_.multiply(layer.input_gate, gate_, mine);
    for (int64_t i = 0; i < call_.rows && mine.begin < mine.end; ++i) {
      float* const up = up_ + i * n + mine.begin;
      std::copy_n(call_.inputs + (number * call_.rows + i) * n + mine.begin, mine.end - mine.begin, up);
      activate(layer, gate_ + i * n + mine.begin, up, mine.end - mine.begin);
    }
  }

  void route(const DecoderLayer& layer, bool again) {
    if (!again) begin_second_half(layer);
    keep(middle_);
    multiply(layer.experts.router, router_);
    if (layer.experts.shared_gate.n) multiply(layer.experts.shared_gate, shared_gate_);
  }

  // The routing of this layer, whose router step is done.
  const Routing& routing_of(int64_t number) {
    if (routed_ != number) routing_.find(kernels_.rows, call_.layers[number]->experts, router_, call_.rows);
    routed_ = number;
    return routing_;
  }

  // Threads share the experts that have tokens, and the shared one after them, as one matrix. `normed`: this
  // thread has the input.
  void gate_experts(const DecoderLayer& layer, int64_t number, bool normed) {
    const bool apart = layer.experts.dense_norm;  // with norms of their own, of x in middle_
    if (apart) {
      rms_norm(normed_, middle_, layer.feed_forward_norm, layer.norm.eps);
    } else if (!normed) {
      begin_second_half(layer);
    }
    const Routing& routing = routing_of(number);
    const int64_t wide = layer.feed_forward;
    const int64_t of_all = layer.experts.shared.gate.n;
    const Columns mine = share(routing.experts() * wide + of_all);
    if (const Columns columns = mine.within(routing.experts() * wide, of_all); columns.begin < columns.end) {
      products_.of({normed_, call_.width, call_.rows});
      gate(layer, layer.experts.shared.gate, layer.experts.shared.up, columns, before_shared(layer));
    }
    if (apart) {
      rms_norm(normed_, middle_, layer.experts.norm, layer.norm.eps);
      products_.of({normed_, call_.width, call_.rows});
    }
    routing.each([&](const ExpertRows& rows) {
      const Columns columns = mine.within(rows.place * wide, wide);
      if (columns.begin >= columns.end) return;
      gather(rows, layer.experts.scales_input);
      const Expert& expert = layer.experts.each[rows.expert];
      gate(layer, expert.gate, expert.up, columns, rows.first * wide);
    });
  }

  // Where gate_ has the values of the shared expert: after those of all choices.
  int64_t before_shared(const DecoderLayer& layer) const {
    return call_.rows * layer.experts.used * layer.feed_forward;
  }

  // The normed rows of an expert's tokens are the next input, times the expert's share if that is wanted:
  // all rows, or copies of some in own_x_. Its contents are in middle_ already.
  void gather(const ExpertRows& rows, bool scaled) {
    const int64_t width = call_.width;
    if (rows.count == call_.rows && !scaled) {
      if (products_.input().x != normed_) products_.of({normed_, width, rows.count});
      return;
    }
    for (int64_t i = 0; i < rows.count; ++i)
      scale_values(own_x_ + i * width, normed_ + rows.choices[i].token * width, width,
                   scaled ? rows.choices[i].share : 1.f);
    products_.of({own_x_, width, rows.count});
  }

  // This share's columns of the weighted sum of all experts' results, and of the dense feed-forward's.
  void add_experts(const DecoderLayer& layer, const Routing& routing) {
    const Columns mine = share(call_.width);
    if (mine.begin >= mine.end) return;
    float* const sum = layer.experts.dense_norm ? mixed_ : change_;
    begin_sum(layer, sum, mine);
    routing.each([&](const ExpertRows& rows) {
      products_.of({gate_ + rows.first * layer.feed_forward, layer.feed_forward, rows.count});
      products_.multiply(layer.experts.each[rows.expert].down, own_x_, mine);
      for (int64_t i = 0; i < rows.count; ++i)
        add_choice(rows.choices[i], own_x_ + i * call_.width, mine, sum, layer.experts.scales_input);
    });
  }
  // Sets the sum to the result of the shared expert, or to 0.
  void begin_sum(const DecoderLayer& layer, float* sum, Columns mine) {
    const Experts& experts = layer.experts;
    if (experts.shared.gate.n) {
      products_.of({gate_ + before_shared(layer), experts.shared.gate.n, call_.rows});
      products_.multiply(experts.shared.down, change_, mine);
    }
    for (int64_t i = 0; i < call_.rows; ++i) {
      float* const row = sum + i * call_.width + mine.begin;
      if (!experts.shared.gate.n || sum != change_)
        std::fill_n(row, mine.end - mine.begin, 0.f);
      else if (experts.shared_gate.n)
        scale_values(row, row, mine.end - mine.begin, 1 / (1 + std::exp(-shared_gate_[i])));
    }
  }
  void add_choice(const Choice& choice, const float* found, Columns columns, float* sum, bool scaled) const {
    float* const to = sum + choice.token * call_.width;
    const float share = scaled ? 1.f : choice.share;
    for (int64_t i = columns.begin; i < columns.end; ++i) to[i] += share * found[i];
  }

  // Logits of the last row of each sequence, or of all rows.
  void logits(bool again) {
    const DecoderEnds& ends = *call_.ends;
    if (!again) {
      add_layer(call_.count - 1);
      for (int64_t s = 0; s < call_.sequence_count && !call_.logits_of_all_rows; ++s)
        std::copy_n(own_x_ + (call_.sequences[s].stop - 1) * call_.width, call_.width,
                    own_x_ + s * call_.width);
      normalize(own_x_, ends.norm, ends.norm_kind, call_.logit_rows());
    }
    const Columns mine = share(ends.output.n);
    products_.multiply(ends.output, call_.logits, mine);
    if (mine.begin >= mine.end) return;
    for (int64_t i = 0; i < call_.logit_rows(); ++i) {
      float* const found = call_.logits + i * ends.output.n + mine.begin;
      if (ends.softcap != 0.f) kernels_.attention.cap(found, mine.end - mine.begin, ends.softcap);
      if (ends.logit_scale != 1.f) scale_values(found, found, mine.end - mine.begin, ends.logit_scale);
    }
  }

  void multiply(const Matrix& matrix, float* out) { products_.multiply(matrix, out, share(matrix.n)); }

  const Kernels& kernels_;
  const DecoderCall& call_;
  const Stages stages_;
  const int64_t all_;
  char* const mine_;  // this thread's own memory
  int64_t share_ = 0;
  Stage stage_ = kProjections;
  uint32_t last_step_ = UINT32_MAX;
  DecoderProducts products_;
  float *const q_, *const k_, *const v_, *const attended_;
  CachedAttention attention_;
  float* const values_;
  LatentAttention latent_;
  RecurrentMixer recurrent_;
  float *change_, *router_, *shared_gate_, *gate_, *up_, *x_, *middle_, *third_, *mixed_, *begins_;
  ShareTicks* took_;
  float *own_x_, *normed_;
  Routing routing_{};
  int64_t routed_ = -1;  // the layer of the current routing
};

}  // namespace cpu
