// A decoder layer as Python passes it to a native backend: its weights by name, as in airllm.memory.layers,
// and its numbers.
#pragma once
#include <pybind11/stl.h>

#include <array>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "../cpu/decoder/decoder.h"
#include "arguments.h"

namespace arguments {

// What a layer computes, apart from its weights.
struct LayerNumbers {
  int64_t heads, kv_heads, head_dim;
  float norm_eps, attention_scale;
  std::optional<float> attention_softcap;
  std::optional<int64_t> window;
  std::string activation;
  bool interleaved;
  int64_t part, place;
  bool shares;
  int64_t rotation;
  int64_t experts_used;
  bool normalize_experts;
  float residual_scale;
  // Scale, the length at which it starts, and what is added to positions.
  std::optional<std::tuple<float, int64_t, int64_t>> query_temperature;
  bool pre_norms;
  std::string qk_norm;
  float swiglu_alpha, swiglu_limit;
  std::string expert_scores;
  float expert_scale;
  std::string norm;  // "layer", or "" for RMS norms
  bool norm_bias, parallel, gated, late_qk_norm;
  int64_t expert_groups, expert_groups_used, expert_group_best;
  bool keys_as_values, chunked, scales_input, output_gate;
  int64_t key_heads, state_at;  // of a mixer with a state; key_heads 0: a short convolution
  bool tiled;
};

// Combinations of traits that no layer supports, though each trait is known: `trait` with the trait `with`,
// or without the trait `without`. Python reads it before weights are loaded, the constructor afterwards.
struct Refusal {
  const char *trait, *with, *without, *why;
};
inline constexpr Refusal kRefusals[] = {
    {"experts", "pre_norms", "", "experts take their input from a norm before them"},
    {"dense_and_experts", "", "post_norms", "the sum of a dense feed-forward and experts has a norm"},
    {"pre_norms", "", "post_norms", "a half of a layer has a norm before it or after it"},
};

// Gate, up and down of each expert of a layer; empty if it has none.
using ExpertArrays = std::vector<std::array<py::object, 3>>;

// A layer's weights and numbers, checked once; it keeps the arrays that its pointers refer to. `Weights` is
// where a backend stores them: `op` begins its messages; size(), rows(), vector() and matrix() read an array;
// a norm with a bias has it after its weights, in one vector;
// kExperts, kSinks, kLatents and kRecurrent say whether its layers may have experts, heads with sinks, latent
// attention (weights of which have "attention.kv_a") and mixers with a state ("recurrent.in"). The biases of
// an expert are among the weights, as "experts.3.gate_bias".
template <class Weights>
class [[gnu::visibility("hidden")]] LayerWeights {
 public:
  LayerWeights(const py::dict& weights, const ExpertArrays& experts, const LayerNumbers& numbers) {
    for (const auto& [name, weight] : weights)
      unread_[py::cast<std::string>(name)] = py::reinterpret_borrow<py::object>(weight);
    refuse(experts, numbers);
    read(numbers);
    if (unread_.count("recurrent.in"))
      read_recurrent(numbers);
    else if (unread_.count("attention.kv_a"))
      read_latent();
    else
      read_attention(numbers.pre_norms, numbers.keys_as_values);
    read_input();
    if (const py::object scale = find("scale")) layer_.output_scale = floats("scale", scale, 1);
    if (numbers.pre_norms && !numbers.parallel)
      layer_.feed_forward_norm = floats("feed_forward.norm", require("feed_forward.norm"), norm_size());
    layer_.feed_forward_post_norm = optional_floats("feed_forward.post_norm", norm_size());
    if (experts.empty())
      read_feed_forward(numbers.gated);
    else
      read_experts(experts, numbers);
    if (!unread_.empty()) not_implemented(op_, "weights have '" + unread_.begin()->first + "'");
  }

  LayerWeights(const LayerWeights&) = delete;
  LayerWeights& operator=(const LayerWeights&) = delete;

  const cpu::DecoderLayer& get() const { return layer_; }

 private:
  void refuse(const ExpertArrays& experts, const LayerNumbers& n) const {
    if (!Weights::kExperts && !experts.empty()) not_implemented(op_, "native layers do not support experts");
    std::set<std::string> traits{""};
    if (!experts.empty()) traits.insert("experts");
    if (!n.pre_norms) traits.insert("pre_norms");
    if (unread_.count("experts.norm")) traits.insert("dense_and_experts");
    if (unread_.count("attention.post_norm")) traits.insert("post_norms");
    for (const Refusal& each : kRefusals) {
      const bool without = !*each.without || !traits.count(each.without);
      if (traits.count(each.trait) && traits.count(each.with) && without) not_implemented(op_, each.why);
    }
  }

  void read(const LayerNumbers& n) {
    const auto positive = [&](const char* name, int64_t value) {
      if (value < 1) op_.wrong_value(name, "has value " + std::to_string(value), "1 or more");
      return value;
    };
    layer_.heads = positive("heads", n.heads);
    layer_.kv_heads = positive("kv_heads", n.kv_heads);
    layer_.head_dim = positive("head_dim", n.head_dim);
    if (n.heads % n.kv_heads)
      op_.wrong_value("heads", "has value " + std::to_string(n.heads),
                      "a multiple of kv_heads=" + std::to_string(n.kv_heads));
    layer_.window = n.window ? positive("windows", *n.window) : 0;
    layer_.chunked = n.chunked && n.window;
    layer_.part = positive("part", n.part + 1) - 1;
    layer_.place = positive("place", n.place + 1) - 1;
    layer_.shares = n.shares;
    layer_.rotation = positive("rotation", n.rotation + 2) - 2;
    layer_.eps = n.norm_eps;
    static const char* const norms[] = {"", "layer"};
    layer_.norm = {n.norm_eps, choice(op_, "norm", py::str(n.norm).ptr(), norms) == 1, n.norm_bias};
    layer_.parallel = n.parallel;
    layer_.norms_last = n.late_qk_norm;
    layer_.output_gate = n.output_gate;
    layer_.scale = n.attention_scale;
    layer_.softcap = n.attention_softcap.value_or(0.f);
    static const char* const activations[] = {"silu", "gelu_tanh", "gelu", "swiglu_clamped"};
    layer_.activation =
        static_cast<cpu::Activation>(choice(op_, "activation", py::str(n.activation).ptr(), activations));
    layer_.swiglu_alpha = n.swiglu_alpha;
    layer_.swiglu_limit = n.swiglu_limit;
    layer_.interleaved = n.interleaved;
    layer_.residual_scale = n.residual_scale;
    static const char* const normed[] = {"", "head", "row", "rotated"};
    layer_.norms_whole_rows = choice(op_, "qk_norm", py::str(n.qk_norm).ptr(), normed) == 2;
    if (n.query_temperature) {
      layer_.temperature = std::get<0>(*n.query_temperature);
      layer_.temperature_length = positive("query_temperature", std::get<1>(*n.query_temperature));
      layer_.temperature_offset = std::get<2>(*n.query_temperature);
    }
  }

  int64_t norm_size() const { return layer_.norm.bias ? 2 * layer_.width : layer_.width; }

  void read_attention(bool pre_norms, bool keys_as_values) {
    const int64_t q = layer_.heads * layer_.head_dim, kv = layer_.kv_heads * layer_.head_dim;
    const char* const first = pre_norms ? "attention.norm" : "attention.post_norm";
    const py::object norm = require(first);
    layer_.width = Weights::size(first, norm.ptr()) / (layer_.norm.bias ? 2 : 1);
    const float* const weights = floats(first, norm, norm_size());
    layer_.attention_norm = pre_norms ? weights : nullptr;
    layer_.attention_post_norm = pre_norms ? optional_floats("attention.post_norm", norm_size()) : weights;
    layer_.q = matrix("attention.q", layer_.output_gate ? 2 * q : q, layer_.width);
    if (layer_.output_gate && (layer_.norms_last || layer_.norms_whole_rows))
      not_implemented(op_, "queries with a gate have norms of heads, before their rotation");
    if (!layer_.shares) {
      layer_.k = matrix("attention.k", kv, layer_.width);
      if (!keys_as_values) layer_.v = matrix("attention.v", kv, layer_.width);
      layer_.v_norm = optional_floats("attention.v_norm", layer_.head_dim);
    }
    layer_.output = matrix("attention.output", layer_.width, q);
    if (Weights::kSinks) layer_.sinks = optional_floats("attention.sinks", layer_.heads);
    layer_.q_norm = optional_floats("attention.q_norm", layer_.norms_whole_rows ? q : layer_.head_dim);
    layer_.k_norm = optional_floats("attention.k_norm", layer_.norms_whole_rows ? kv : layer_.head_dim);
  }

  // A mixer with a state. Its filter has a row for each tap; sizes follow from the weights.
  void read_recurrent(const LayerNumbers& numbers) {
    if (!Weights::kRecurrent || layer_.norm.bias || !numbers.pre_norms)
      not_implemented(op_, "native layers do not support recurrent states");
    cpu::Recurrent& of = layer_.recurrent;
    const py::object norm = require("attention.norm"), in = require("recurrent.in"),
                     filter = require("recurrent.filter");
    layer_.width = Weights::size("attention.norm", norm.ptr());
    layer_.attention_norm = floats("attention.norm", norm, layer_.width);
    layer_.attention_post_norm = optional_floats("attention.post_norm", layer_.width);
    const int64_t rows = Weights::rows("recurrent.in", in.ptr());
    of.key_heads = numbers.key_heads;
    of.channels = of.key_heads ? rows : rows / 3;
    of.taps = of.channels ? Weights::size("recurrent.filter", filter.ptr()) / of.channels : 0;
    if (of.taps < 1 || numbers.state_at < 0)
      op_.wrong_value("recurrent.in", "has " + std::to_string(rows) + " rows", "those of the filter");
    of.filter = floats("recurrent.filter", filter, of.taps * of.channels);
    of.state_at = numbers.state_at;
    layer_.q = matrix("recurrent.in", in, of.key_heads ? rows : 3 * of.channels, layer_.width);
    if (of.key_heads) read_delta_rule(numbers.tiled);
    const int64_t result = of.key_heads ? of.value_heads * of.value_dim : of.channels;
    layer_.output = matrix("recurrent.output", layer_.width, result);
  }
  void read_delta_rule(bool tiled) {
    cpu::Recurrent& of = layer_.recurrent;
    const py::object decay = require("recurrent.decay"), scale = require("recurrent.head_scale");
    of.tiled = tiled;
    of.value_heads = Weights::size("recurrent.decay", decay.ptr());
    of.value_dim = Weights::size("recurrent.head_scale", scale.ptr());
    const int64_t values = of.value_heads * of.value_dim;
    of.key_dim = (of.channels - values) / (2 * of.key_heads);
    if (of.key_heads < 1 || of.value_heads % of.key_heads || of.key_dim < 1 ||
        2 * of.key_heads * of.key_dim + values != of.channels)
      op_.wrong_value("key_heads", "has value " + std::to_string(of.key_heads),
                      "a divisor of " + std::to_string(of.value_heads) + " heads of values");
    of.decay = floats("recurrent.decay", decay, of.value_heads);
    of.head_norm = floats("recurrent.head_scale", scale, of.value_dim);
    of.step_bias = floats("recurrent.step_bias", require("recurrent.step_bias"), of.value_heads);
    of.gate = matrix("recurrent.gate", values, layer_.width);
    of.rate = matrix("recurrent.rate", of.value_heads, layer_.width);
    of.step = matrix("recurrent.step", of.value_heads, layer_.width);
  }

  // Latent attention: head_dim is that of queries, until the row of a token takes its place.
  void read_latent() {
    if (!Weights::kLatents || layer_.norm.bias)
      not_implemented(op_, "native layers do not support latent attention");
    cpu::Latent& of = layer_.latent;
    const py::object norm = require("attention.norm"), kv_norm = require("attention.kv_a_norm"),
                     kv_a = require("attention.kv_a"), v_b = require("attention.v_b");
    layer_.width = Weights::size("attention.norm", norm.ptr());
    layer_.attention_norm = floats("attention.norm", norm, layer_.width);
    of.kv_rank = Weights::size("attention.kv_a_norm", kv_norm.ptr());
    of.kv_norm = floats("attention.kv_a_norm", kv_norm, of.kv_rank);
    const int64_t row = Weights::rows("attention.kv_a", kv_a.ptr()), heads = layer_.heads;
    of.rotated = row - of.kv_rank;
    of.plain = layer_.head_dim - of.rotated;
    of.value_dim = Weights::rows("attention.v_b", v_b.ptr()) / heads;
    if (of.rotated < 1 || of.plain < 1 || of.rotated % 2)
      op_.wrong_value("attention.kv_a", "has " + std::to_string(row) + " rows",
                      "those of a latent of " + std::to_string(of.kv_rank) +
                          ", and an even number of less than head_dim=" + std::to_string(layer_.head_dim));
    of.kv_a = matrix("attention.kv_a", kv_a, row, layer_.width);
    of.k_b = matrix("attention.k_b", heads * of.kv_rank, of.plain);
    of.v_b = matrix("attention.v_b", v_b, heads * of.value_dim, of.kv_rank);
    read_latent_queries();
    layer_.output = matrix("attention.output", layer_.width, heads * of.value_dim);
    layer_.head_dim = row;
  }
  void read_latent_queries() {
    cpu::Latent& of = layer_.latent;
    const int64_t queries = layer_.heads * layer_.head_dim;
    const py::object q_a = find("attention.q_a");
    if (!q_a) {
      layer_.q = matrix("attention.q", queries, layer_.width);
      return;
    }
    const int64_t rank = Weights::rows("attention.q_a", q_a.ptr());
    of.q_a = matrix("attention.q_a", q_a, rank, layer_.width);
    of.q_norm = floats("attention.q_a_norm", require("attention.q_a_norm"), rank);
    layer_.q = matrix("attention.q_b", queries, rank);
    // Threads share heads, and kernels of interleaved weights compute whole bands of rows.
    if (layer_.q.interleaved && layer_.head_dim % 16)
      not_implemented(op_, "heads of queries are no whole bands of rows");
  }

  void read_input() {
    const py::object gate = find("input.gate");
    if (!gate) return;
    const int64_t n = Weights::rows("input.gate", gate.ptr());
    layer_.input_gate = matrix("input.gate", gate, n, layer_.width);
    layer_.input_projection = matrix("input.projection", layer_.width, n);
    layer_.input_post_norm = floats("input.post_norm", require("input.post_norm"), layer_.width);
  }

  void read_feed_forward(bool gated) {
    const char* const first = gated ? "feed_forward.gate" : "feed_forward.up";
    const py::object weights = require(first);
    layer_.feed_forward = Weights::rows(first, weights.ptr());
    (gated ? layer_.gate : layer_.up) = matrix(first, weights, layer_.feed_forward, layer_.width);
    if (gated) layer_.up = matrix("feed_forward.up", layer_.feed_forward, layer_.width);
    if (!gated && layer_.activation == cpu::kSwigluClamped)
      not_implemented(op_, "a clamped feed-forward has a gate");
    layer_.down = matrix("feed_forward.down", layer_.width, layer_.feed_forward);
  }

  void read_experts(const ExpertArrays& experts, const LayerNumbers& n) {
    cpu::Experts& all = layer_.experts;
    all.count = static_cast<int64_t>(experts.size());
    if (n.experts_used < 1 || n.experts_used > all.count)
      op_.wrong_value("experts_used", "has value " + std::to_string(n.experts_used),
                      "1 to " + std::to_string(all.count));
    all.used = n.experts_used;
    all.normalize = n.normalize_experts;
    static const char* const scores[] = {"", "sigmoid"};
    all.sigmoid = choice(op_, "expert_scores", py::str(n.expert_scores).ptr(), scores) == 1;
    all.scales_input = n.scales_input;
    all.scale = n.expert_scale;
    all.groups = n.expert_groups;
    all.groups_used = n.expert_groups_used;
    all.group_best = n.expert_group_best;
    if (all.group_best < 1 || all.group_best > 2)
      op_.wrong_value("expert_group_best", "has value " + std::to_string(all.group_best), "1 or 2");
    const int64_t kept = all.groups > 0 ? all.count / all.groups * all.groups_used : 0;
    if (all.groups < 1 || all.groups_used < 1 || all.groups_used > all.groups || all.count % all.groups ||
        kept < all.used)
      op_.wrong_value(
          "expert_groups",
          "has value " + std::to_string(all.groups) + " with " + std::to_string(all.groups_used) + " used",
          "groups of equal size of " + std::to_string(all.count) + " experts; those used must have " +
              std::to_string(all.used) + " experts or more");
    all.selection_bias = optional_floats("experts.selection_bias", all.count);
    all.router = matrix("experts.router", all.count, layer_.width);
    layer_.feed_forward = Weights::rows("experts.0.gate", experts[0][0].ptr());
    for (const auto& each : experts) read_expert("experts." + std::to_string(experts_.size()), each);
    if (unread_.count("experts.norm"))
      read_dense();
    else
      read_shared_expert();
    all.each = experts_.data();
    all.kinds = kinds_.data();
    all.kind_count = static_cast<int64_t>(kinds_.size());
  }
  // The dense feed-forward beside the experts, and the norms and scales of both.
  void read_dense() {
    cpu::Experts& all = layer_.experts;
    const int64_t wide = layer_.feed_forward;  // of an expert
    read_feed_forward(true);
    all.shared = {layer_.gate, layer_.up, layer_.down};
    layer_.gate = layer_.up = layer_.down = {};
    layer_.feed_forward = wide;
    const auto norm = [&](const char* name) { return floats(name, require(name), layer_.width); };
    all.dense_norm = norm("feed_forward.dense_norm");
    all.norm = norm("experts.norm");
    all.router_norm = norm("experts.router_norm");
    all.post_norm = norm("experts.post_norm");
    all.scales = floats("experts.scales", require("experts.scales"), all.count);
  }
  void read_shared_expert() {
    const py::object gate = find("shared_expert.gate");
    if (!gate) return;
    cpu::Experts& all = layer_.experts;
    const int64_t wide = Weights::rows("shared_expert.gate", gate.ptr()), narrow = layer_.width;
    all.shared = {matrix("shared_expert.gate", gate, wide, narrow), matrix("shared_expert.up", wide, narrow),
                  matrix("shared_expert.down", narrow, wide)};
    if (const py::object router = find("shared_expert.router"))
      all.shared_gate = matrix("shared_expert.router", router, 1, narrow);
  }
  void read_expert(const std::string& name, const std::array<py::object, 3>& arrays) {
    const int64_t wide = layer_.feed_forward, narrow = layer_.width;
    const cpu::Expert expert{matrix(name + ".gate", arrays[0], wide, narrow),
                             matrix(name + ".up", arrays[1], wide, narrow),
                             matrix(name + ".down", arrays[2], narrow, wide)};
    for (const cpu::Matrix& each : {expert.gate, expert.up, expert.down}) add_kind(each);
    experts_.push_back(expert);
  }
  void add_kind(const cpu::Matrix& matrix) {
    for (const cpu::Matrix& known : kinds_)
      if (known.format == matrix.format && known.k == matrix.k && known.interleaved == matrix.interleaved)
        return;
    kinds_.push_back(matrix);
  }

  // The weight of this name, or null.
  py::object find(const std::string& name) {
    const auto at = unread_.find(name);
    if (at == unread_.end()) return {};
    py::object weight = std::move(at->second);
    unread_.erase(at);
    return weight;
  }
  py::object require(const std::string& name) {
    py::object weight = find(name);
    if (!weight) not_implemented(op_, "weights lack '" + name + "'");
    return weight;
  }

  const float* floats(const char* name, const py::object& object, int64_t n) {
    kept_.push_back(object);
    return Weights::vector(name, object.ptr(), n);
  }
  const float* optional_floats(const std::string& name, int64_t n) {
    const py::object object = find(name);
    return object ? floats(name.c_str(), object, n) : nullptr;
  }

  cpu::Matrix matrix(const std::string& name, int64_t n, int64_t k) {
    return matrix(name, require(name), n, k);
  }
  cpu::Matrix matrix(const std::string& name, const py::object& object, int64_t n, int64_t k) {
    kept_.push_back(object);
    cpu::Matrix read = Weights::matrix(name.c_str(), object.ptr(), n, k);
    read.bias = optional_floats(name + "_bias", n);
    return read;
  }

  static constexpr Op op_ = Weights::op;
  cpu::DecoderLayer layer_{};
  std::map<std::string, py::object> unread_;
  std::list<py::object> kept_;
  std::vector<cpu::Expert> experts_;
  std::vector<cpu::Matrix> kinds_;
};

}  // namespace arguments
