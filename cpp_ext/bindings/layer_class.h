// The Python class of a native backend's layers: what its constructor takes, and which traits of models the
// layers support.
#pragma once
#include "layer_weights.h"

namespace arguments {

// The traits of a model (ModelConfig.traits) that a module's layers and ends support. A model with any other
// trait is computed op by op. These constants are what all layers of LayerWeights support.
using Traits = std::initializer_list<const char*>;
inline constexpr Traits kLayerTraits = {"activation=gelu",
                                        "activation=gelu_tanh",
                                        "attention_softcap",
                                        "local_rope",
                                        "local_rope.interleaved",
                                        "local_rope.scaling",
                                        "output_bias",
                                        "post_norms",
                                        "qk_norm=head",
                                        "qkv_bias",
                                        "rope.interleaved",
                                        "rope.scaling",
                                        "windows"};
inline constexpr Traits kEndTraits = {"embedding_scale", "logit_softcap"};

// The traits that one backend supports in addition.
struct MoreTraits {
  Traits layers, ends;
};

inline py::frozenset set_of(Traits some, Traits more = {}) {
  py::set all;
  for (const Traits& traits : {some, more})
    for (const char* trait : traits) all.add(trait);
  return all;
}

// Defines the Python class of a backend's layers.
template <class Layer>
void define_layer(py::module_& module, const char* name, const char* doc, const MoreTraits& more = {}) {
  py::dict traits;
  traits["layers"] = set_of(kLayerTraits, more.layers);
  traits["ends"] = set_of(kEndTraits, more.ends);
  module.attr("decoder_traits") = traits;
  py::list refusals;
  for (const Refusal& each : kRefusals)
    refusals.append(py::make_tuple(each.trait, each.with, each.without, each.why));
  module.attr("decoder_refusals") = py::tuple(refusals);
  py::class_<Layer>(module, name, doc)
      .def(
          py::init(
              [](const py::dict& weights, int64_t heads, int64_t kv_heads, int64_t head_dim, float norm_eps,
                 float attention_scale, std::optional<float> attention_softcap, std::optional<int64_t> window,
                 const std::string& activation, bool interleaved, int64_t part, int64_t place, bool shares,
                 int64_t rotation, const ExpertArrays& experts, int64_t experts_used, bool normalize_experts,
                 float residual_scale, std::optional<std::tuple<float, int64_t, int64_t>> query_temperature,
                 bool pre_norms, const std::string& qk_norm, float swiglu_alpha, float swiglu_limit,
                 const std::string& expert_scores, float expert_scale, const std::string& norm,
                 bool norm_bias, bool parallel, bool gated, bool late_qk_norm, int64_t expert_groups,
                 int64_t expert_groups_used, int64_t expert_group_best, bool keys_as_values, bool chunked,
                 bool scales_input, bool output_gate, int64_t key_heads, int64_t state_at, bool tiled) {
                return new Layer(weights, experts,
                                 {heads,
                                  kv_heads,
                                  head_dim,
                                  norm_eps,
                                  attention_scale,
                                  attention_softcap,
                                  window,
                                  activation,
                                  interleaved,
                                  part,
                                  place,
                                  shares,
                                  rotation,
                                  experts_used,
                                  normalize_experts,
                                  residual_scale,
                                  query_temperature,
                                  pre_norms,
                                  qk_norm,
                                  swiglu_alpha,
                                  swiglu_limit,
                                  expert_scores,
                                  expert_scale,
                                  norm,
                                  norm_bias,
                                  parallel,
                                  gated,
                                  late_qk_norm,
                                  expert_groups,
                                  expert_groups_used,
                                  expert_group_best,
                                  keys_as_values,
                                  chunked,
                                  scales_input,
                                  output_gate,
                                  key_heads,
                                  state_at,
                                  tiled});
              }),
          py::arg("weights"), py::kw_only(), py::arg("heads"), py::arg("kv_heads"), py::arg("head_dim"),
          py::arg("norm_eps"), py::arg("attention_scale"), py::arg("attention_softcap") = py::none(),
          py::arg("windows") = py::none(), py::arg("activation") = "silu", py::arg("interleaved") = false,
          py::arg("part") = 0, py::arg("place") = 0, py::arg("shares") = false, py::arg("rotation") = 0,
          py::arg("experts") = py::tuple(), py::arg("experts_used") = 0, py::arg("normalize_experts") = false,
          py::arg("residual_scale") = 1.f, py::arg("query_temperature") = py::none(),
          py::arg("pre_norms") = true, py::arg("qk_norm") = "", py::arg("swiglu_alpha") = 1.702f,
          py::arg("swiglu_limit") = 7.f, py::arg("expert_scores") = "", py::arg("expert_scale") = 1.f,
          py::arg("norm") = "", py::arg("norm_bias") = false, py::arg("parallel") = false,
          py::arg("gated") = true, py::arg("late_qk_norm") = false, py::arg("expert_groups") = 1,
          py::arg("expert_groups_used") = 1, py::arg("expert_group_best") = 2,
          py::arg("keys_as_values") = false, py::arg("chunked") = false, py::arg("scales_input") = false,
          py::arg("output_gate") = false, py::arg("key_heads") = 0, py::arg("state_at") = 0,
          py::arg("tiled") = false);
}

}  // namespace arguments
