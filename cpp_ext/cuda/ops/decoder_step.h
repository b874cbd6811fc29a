// A decoding step on the device, from a token id to logits, for one sequence. airllm/engine/layers/decoder.py
// and model.py define what it computes; this file defines its memory and launches.
//
// No launch argument depends on the token or its position: both are read from memory, so that the step can be
// captured once.
#pragma once

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "../../cpu/decoder/decoder.h"
#include "../arrays/device_array.h"
#include "../runtime/graph.h"

namespace airllm::cuda {

// What does not change from token to token. Weights are on the device.
struct StepPlan {
  std::vector<const cpu::DecoderLayer*> layers;
  cpu::DecoderEnds ends;
  std::vector<int64_t> pairs;  // of elements that each rotation rotates
  int64_t capacity;            // the maximum number of tokens
  DType cache_dtype;

  int64_t width() const { return ends.embedding.k; }
  int64_t vocabulary() const { return ends.output.n; }

  template <class Size>
  int64_t most(const Size& size) const {
    int64_t found = 0;
    for (const cpu::DecoderLayer* layer : layers) found = std::max<int64_t>(found, size(*layer));
    return found;
  }
};

inline AttentionShape attention_shape(const StepPlan& plan, const cpu::DecoderLayer& layer) {
  return {1, 1, layer.heads, layer.kv_heads, 1, plan.capacity, layer.head_dim, layer.head_dim};
}

// The memory of steps, allocated at once.
class StepMemory {
 public:
  // The input of a step: `length` is the number of keys, including the token's.
  struct Input {
    int64_t token, position, length;
  };
  // The cosines and sines (capacity, pairs), and those of the step.
  struct Angles {
    float *cos_table, *sin_table, *cos, *sin;
  };

  // Memory of the current device, which must be `device`, in the order of the home stream.
  StepMemory(const StepPlan& plan, int device) : host_logits(size_t(plan.vocabulary())), device_(device) {
    input = static_cast<Input*>(bytes(sizeof(Input)));
    row = bytes(plan.width() * int64_t(sizeof(float)));
    x = floats(plan.width()), normed = floats(plan.width()), change = floats(plan.width());
    q = floats(plan.most(query_size)), attended = floats(plan.most(query_size));
    kv = floats(plan.most(kv_size));
    gate = floats(plan.most(wide)), up = floats(plan.most(wide));
    partial = floats(plan.most([&](const auto& of) { return attention_partial(attention_shape(plan, of)); }));
    for (const int64_t pairs : plan.pairs)
      angles.push_back(
          {floats(plan.capacity * pairs), floats(plan.capacity * pairs), floats(pairs), floats(pairs)});
    for (const cpu::DecoderLayer* layer : plan.layers)
      cache.push_back(bytes(kv_size(*layer) * plan.capacity * int64_t(size_of(plan.cache_dtype))));
    logits = floats(plan.vocabulary());
  }

  Input* input;
  void* row;  // a row of the embedding, as stored
  float *x, *normed, *change, *q, *kv, *attended, *gate, *up, *partial, *logits;
  std::vector<Angles> angles;
  std::vector<void*> cache;  // for each layer: keys and values (2, kv_heads, capacity, head_dim)
  const Pinned<Input> host_input{1};
  const Pinned<float> host_logits;

 private:
  static int64_t query_size(const cpu::DecoderLayer& of) { return of.heads * of.head_dim; }
  static int64_t kv_size(const cpu::DecoderLayer& of) { return 2 * of.kv_heads * of.head_dim; }
  static int64_t wide(const cpu::DecoderLayer& of) { return of.feed_forward; }

  void* bytes(int64_t count) {
    blocks_.emplace_back(size_t(count), device_, home_stream());
    return blocks_.back().data();
  }
  float* floats(int64_t count) { return static_cast<float*>(bytes(count * int64_t(sizeof(float)))); }

  const int device_;
  std::vector<Memory> blocks_;
};

// Enqueues the launches of a step on a stream.
class StepLaunches {
 public:
  StepLaunches(const StepPlan& plan, const StepMemory& memory, cudaStream_t stream)
      : plan_(plan), at_(memory), stream_(stream) {}

  void put() const {
    copy(at_.input, at_.host_input.data(), sizeof(StepMemory::Input), cudaMemcpyHostToDevice, stream_);
    embedding();
    for (size_t i = 0; i < plan_.pairs.size(); ++i) angles(at_.angles[i], plan_.pairs[i]);
    rms_norm(at_.normed, at_.x, first_norm(0), 1, plan_.width());
    for (size_t i = 0; i < plan_.layers.size(); ++i) {
      attention(*plan_.layers[i], at_.cache[i]);
      feed_forward(*plan_.layers[i], first_norm(i + 1));
    }
    linear(at_.logits, at_.normed, plan_.ends.output);
    if (plan_.ends.softcap != 0)
      check_launch(launch_softcap(at_.logits, plan_.vocabulary(), plan_.ends.softcap, stream_), "softcap");
    copy(at_.host_logits.data(), at_.logits, size_t(plan_.vocabulary()) * sizeof(float),
         cudaMemcpyDeviceToHost, stream_);
  }

 private:
  static void check_launch(cudaError_t code, const char* op) {
    check(code, ("the launch of " + std::string(op)).c_str());
  }

  static StoredArray stored_array(const cpu::Matrix& matrix) {
    const cpu::Block& block = cpu::kBlocks[matrix.format];
    return {matrix.data, matrix.format, matrix.k / block.values * block.bytes};
  }

  void linear(float* out, const float* x, const cpu::Matrix& w) const {
    const AnyArray bias{w.bias, w.bias ? kAnyF32 : kNoArray};
    check_launch(
        launch_linear_of_few_rows({out, x, stored_array(w), bias, DType::f32, 1, w.n, w.k, 1.0f}, stream_),
        "linear");
  }

  struct Norm {
    const float* weight;  // null: the layer has no such norm
    float eps;
  };

  // The first norm of layer i, or the norm after the last layer.
  Norm first_norm(size_t i) const {
    if (i == plan_.layers.size()) return {plan_.ends.norm, plan_.ends.norm_kind.eps};
    return {plan_.layers[i]->attention_norm, plan_.layers[i]->eps};
  }

  void rms_norm(float* out, const float* x, Norm norm, int64_t rows, int64_t n) const {
    if (!norm.weight) return;
    check_launch(launch_rms_norm(out, x, norm.weight, DType::f32, DType::f32, rows, n, norm.eps, stream_),
                 "rms_norm");
  }

  // x += change, then its norm.
  void add_norm(Norm norm) const {
    const AnyArray weight{norm.weight, kAnyF32};
    check_launch(launch_add_rms_norm(at_.x, at_.normed, at_.x, at_.change, weight, DType::f32, 1,
                                     plan_.width(), norm.eps, stream_),
                 "add_rms_norm");
  }

  // Reads a row of a table; its index is in device memory.
  void row_of(void* out, const int64_t* number, const StoredArray& table, int64_t rows, int64_t n) const {
    check_launch(launch_embedding(out, {number, kAnyI64}, table, 1, rows, n, stream_), "embedding");
  }

  void embedding() const {
    const cpu::Matrix& table = plan_.ends.embedding;
    const bool halves = table.format == cpu::kF16 || table.format == cpu::kBF16;
    void* const row = halves ? at_.row : at_.x;
    row_of(row, &at_.input->token, stored_array(table), table.n, table.k);
    if (halves || plan_.ends.embedding_scale != 1) {
      const DType dtype = halves ? DType(table.format) : DType::f32;
      check_launch(launch_scale(at_.x, row, dtype, table.k, plan_.ends.embedding_scale, stream_), "scale");
    }
  }

  void angles(const StepMemory::Angles& at, int64_t pairs) const {
    const int64_t row = pairs * int64_t(sizeof(float));
    row_of(at.cos, &at_.input->position, {at.cos_table, cpu::kF32, row}, plan_.capacity, pairs);
    row_of(at.sin, &at_.input->position, {at.sin_table, cpu::kF32, row}, plan_.capacity, pairs);
  }

  void attention(const cpu::DecoderLayer& of, void* cache) const {
    float *const k = at_.kv, *const v = k + of.kv_heads * of.head_dim;
    linear(at_.q, at_.normed, of.q);
    linear(k, at_.normed, of.k);
    linear(v, at_.normed, of.v);
    rms_norm(at_.q, at_.q, {of.q_norm, of.eps}, of.heads, of.head_dim);
    rms_norm(k, k, {of.k_norm, of.eps}, of.kv_heads, of.head_dim);
    rotate(at_.q, of.heads, of);
    rotate(k, of.kv_heads, of);
    check_launch(launch_put_rows(cache, plan_.cache_dtype, at_.kv, &at_.input->position, 2 * of.kv_heads,
                                 plan_.capacity, of.head_dim, stream_),
                 "put_rows");
    check_launch(launch_attention(of_keys(of, static_cast<char*>(cache)), stream_), "attention");
    linear(at_.change, at_.attended, of.output);
    rms_norm(at_.change, at_.change, {of.attention_post_norm, of.eps}, 1, of.width);
  }

  // Runs the feed-forward part and the norm that follows it.
  void feed_forward(const cpu::DecoderLayer& of, Norm next) const {
    add_norm({of.feed_forward_norm, of.eps});
    linear(at_.gate, at_.normed, of.gate);
    linear(at_.up, at_.normed, of.up);
    constexpr decltype(&launch_swiglu) gated[] = {launch_swiglu, launch_geglu, launch_geglu_erf};
    check_launch(gated[of.activation](at_.gate, at_.gate, at_.up, DType::f32, of.feed_forward, stream_),
                 "swiglu");
    linear(at_.change, at_.gate, of.down);
    rms_norm(at_.change, at_.change, {of.feed_forward_post_norm, of.eps}, 1, of.width);
    add_norm(next);
  }

  void rotate(float* x, int64_t heads, const cpu::DecoderLayer& of) const {
    const StepMemory::Angles& at = at_.angles[size_t(of.rotation)];
    const Rows4 all_heads_alike{{1, 1, 1}, {0, 0, 0, 0}};
    check_launch(
        launch_apply_rope(x, x, {at.cos, kAnyF32}, {at.sin, kAnyF32}, all_heads_alike, DType::f32, heads,
                          of.head_dim, plan_.pairs[size_t(of.rotation)], of.interleaved, stream_),
        "apply_rope");
  }

  // One query, with the number of keys in device memory.
  Attention of_keys(const cpu::DecoderLayer& of, const char* keys) const {
    const int64_t d = of.head_dim, head = plan_.capacity * d;
    Attention a{};
    a.out = at_.attended, a.q = at_.q, a.k = keys;
    a.v = keys + of.kv_heads * head * int64_t(size_of(plan_.cache_dtype));
    a.mask = {nullptr, kNoArray};
    a.partial = at_.partial, a.length = &at_.input->length;
    a.dtype = DType::f32, a.kv_dtype = plan_.cache_dtype;
    a.shape = attention_shape(plan_, of);
    a.strides[0] = {0, 0, d, d}, a.strides[1] = a.strides[2] = {0, 0, head, d}, a.strides[3] = {};
    a.scale = of.scale, a.softcap = of.softcap, a.window = of.window, a.causal = true;
    return a;
  }

  const StepPlan& plan_;
  const StepMemory& at_;
  const cudaStream_t stream_;
};

// The step as a graph on its own stream, for one sequence.
class CapturedStep {
 public:
  // For the current device, which must be `device`.
  CapturedStep(StepPlan plan, int device) : plan_(std::move(plan)), device_(device), memory_(plan_, device) {
    order(home_stream(), stream_);
    run_once();
    graph_.emplace(stream_, [&] { StepLaunches(plan_, memory_, stream_).put(); });
  }

  const StepPlan& plan() const { return plan_; }

  // Sets the cosines and sines (positions, pairs) of a rotation.
  void set_angles(size_t rotation, const float* cos, const float* sin, int64_t positions) {
    const StepMemory::Angles& at = memory_.angles[rotation];
    const size_t bytes = size_t(positions * plan_.pairs[rotation]) * sizeof(float);
    std::lock_guard<std::mutex> lock(mutex_);
    DeviceGuard guard(device_);
    Finish finish(stream_);
    copy(at.cos_table, cos, bytes, cudaMemcpyHostToDevice, stream_);
    copy(at.sin_table, sin, bytes, cudaMemcpyHostToDevice, stream_);
    finish.now();
  }

  // Computes the logits (vocabulary) after `token`, and stores its key and value at `position`.
  void run(int64_t token, int64_t position, float* logits) {
    std::lock_guard<std::mutex> lock(mutex_);
    DeviceGuard guard(device_);
    *memory_.host_input.data() = {token, position, position + 1};
    Finish finish(stream_);
    graph_->launch(stream_);
    finish.now();
    copies_made += 2;
    std::copy_n(memory_.host_logits.data(), plan_.vocabulary(), logits);
  }

 private:
  // Loads the kernels; a device must not load them while it captures.
  void run_once() {
    *memory_.host_input.data() = {0, 0, 1};
    Finish finish(stream_);
    StepLaunches(plan_, memory_, stream_).put();
    finish.now();
  }

  const StepPlan plan_;
  const int device_;
  const Stream stream_;
  const StepMemory memory_;
  std::optional<Graph> graph_;
  std::mutex mutex_;
};

}  // namespace airllm::cuda
