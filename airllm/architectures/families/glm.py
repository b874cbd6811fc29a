"""GLM 4.5 to 4.7 with experts (Zhipu AI, 2025): dense first layers, experts chosen by sigmoids with a bias
among the best groups, shared experts without a gate. GLM-4.7-Flash has the latent attention of DeepSeek-V3.
"""

from typing import Any

from airllm.architectures.declaration import EXPERT_GROUPS, Architecture, Biases, Norms, Rotary, Tiny
from airllm.architectures.families.deepseek import DEEPSEEK3, TINY_LATENT
from airllm.architectures.values import Values

_TINY = {
    "head_dim": 16,
    "num_hidden_layers": 3,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
}


def _all_but_first(values: Values, layers: int) -> tuple[bool, ...]:
    dense = values.whole("first_k_dense_replace", 1, layers, least=0)
    return tuple(layer >= dense for layer in range(layers))


GLM4_MOE = Architecture(
    name="glm4moe",
    title="GLM 4.5, 4.6 and 4.7 with experts",
    model_types=("glm4_moe",),
    norms=Norms(q_and_k="head", q_and_k_flag=("use_qk_norm", False)),
    rotary=Rotary(part=0.5),
    biases=Biases(output=False, selection=True),
    experts=_all_but_first,
    shared_gate=False,
    numbers=(
        "shared_experts",
        "dense_layers",
        *EXPERT_GROUPS,
    ),
    keys={"dense_layers": {"folder": "first_k_dense_replace"}},
    defaults={"expert_scores": "sigmoid"},
    folder_defaults={"expert_feed_forward": ..., "dense_layers": 1, "shared_experts": 1},
    gguf_names={"feed_forward.norm": "post_attention_norm.weight"},
    folder_names={
        "shared_expert.gate": "mlp.shared_experts.gate_proj.weight",
        "shared_expert.up": "mlp.shared_experts.up_proj.weight",
        "shared_expert.down": "mlp.shared_experts.down_proj.weight",
    },
    tiny={
        "glm4_moe": Tiny(
            {**_TINY, "use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 2.5}
        ),
        "glm4_moe_groups": Tiny(
            {
                **_TINY,
                "n_routed_experts": 8,
                "n_group": 4,
                "topk_group": 2,
                "n_shared_experts": 2,
                "norm_topk_prob": False,
                "num_experts_per_tok": 3,
                "routed_scaling_factor": 1.5,
            },
            "float16",
        ),
    },
)


def _dense_layers(values: Values, key: str, default: Any) -> Any:
    """How many layers have no experts, which newer files list by kind."""
    kinds = values.raw("mlp_layer_types")
    return kinds.count("dense") if isinstance(kinds, list) else values.whole(key, default, least=0)


def _sparse(values: Values, layers: int) -> tuple[bool, ...]:
    """Newer files list the layers; dense ones come first."""
    kinds = values.get("mlp_layer_types", (list,), expected := f"{layers} of dense and sparse", None)
    if kinds is None:
        return _all_but_first(values, layers)
    moe = tuple(kind == "sparse" for kind in kinds)
    if len(moe) != layers or list(moe) != sorted(moe):
        raise values.error("mlp_layer_types", f"has {len(moe)} items, {moe.count(True)} sparse", expected)
    return moe


GLM4_MOE_LITE = DEEPSEEK3.but(
    title="GLM-4.7-Flash",
    model_types=("glm4_moe_lite",),
    experts=_sparse,
    keys={"dense_layers": {"check": _dense_layers}},
    folder_defaults={"norm_eps": 1e-5, "dense_layers": 1},
    tiny={
        "glm4_moe_lite": Tiny(
            {
                **TINY_LATENT,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "q_lora_rank": 32,
                "v_head_dim": 64,
                "routed_scaling_factor": 1.8,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
            }
        ),
    },
)
