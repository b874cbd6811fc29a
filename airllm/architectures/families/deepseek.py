"""DeepSeek-V2, V2-Lite (2024), V3 and R1 (2025), and Kimi K2 (Moonshot AI, 2025), which is built alike. They
have latent attention, dense first layers, many small experts, and shared experts without a gate.
"""

from functools import partial
from typing import Any

from airllm.architectures.declaration import EXPERT_GROUPS, Architecture, Biases, Rotary, Tiny
from airllm.architectures.latent import LATENT_KEYS
from airllm.architectures.values import Values

TINY_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
TINY_LATENT = {
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "kv_lora_rank": 64,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "rope_parameters": TINY_YARN,
}
TINY_LATENT_GROUPS = {
    **TINY_LATENT,
    "q_lora_rank": 32,
    "v_head_dim": 64,
    "kv_lora_rank": 32,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
}


def all_but_first(values: Values, layers: int, dense: int = 0) -> tuple[bool, ...]:
    """Which layers have experts; `dense`: how many do not, if config.json does not say."""
    dense = values.whole("first_k_dense_replace", dense, layers, least=0)
    return tuple(layer >= dense for layer in range(layers))


def _groups(values: Values, key: str, default: Any) -> Any:
    """The number of groups of experts, which the router of V2 ignores unless another key says so."""
    ignored = values.text("topk_method", "group_limited_greedy") == "greedy"
    return 1 if ignored else values.whole(key, default)


def _best_of_group(found: Any) -> int:
    """V2, which has a softmax, compares groups by one expert, V3 by two."""
    return 1 if found["expert_groups"] > 1 and not found["expert_scores"] else 2


DEEPSEEK2 = Architecture(
    name="deepseek2",
    title="DeepSeek-V2 and V2-Lite",
    model_types=("deepseek_v2",),
    rotary=Rotary(
        neighbours=True, neighbours_in_folders=True, temperature=True, log_multiplier=0.1, one_mscale=True
    ),
    latent=True,
    experts=all_but_first,
    shared_gate=False,
    numbers=(
        "q_rank",
        "kv_rank",
        "value_dim",
        "shared_experts",
        "dense_layers",
        *EXPERT_GROUPS,
        "expert_group_best",
    ),
    keys={
        **LATENT_KEYS,
        "dense_layers": {"folder": "first_k_dense_replace"},
        "expert_groups": {"check": _groups},
        "expert_groups_used": {"check": _groups},
    },
    defaults={"expert_group_best": _best_of_group},
    folder_defaults={
        "expert_feed_forward": ...,
        "shared_experts": 2,
        "norm_eps": 1e-6,
        "normalize_experts": False,
    },
    gguf_defaults={"normalize_experts": False},
    folder_names={
        "shared_expert.gate": "mlp.shared_experts.gate_proj.weight",
        "shared_expert.up": "mlp.shared_experts.up_proj.weight",
        "shared_expert.down": "mlp.shared_experts.down_proj.weight",
    },
    refused={"attention_bias": "false: GGUF files cannot say it either"},
    tiny={
        "deepseek_v2_lite": Tiny({**TINY_LATENT, "q_lora_rank": None}),
        "deepseek_v2": Tiny(
            {
                **TINY_LATENT,
                "q_lora_rank": 32,
                "n_routed_experts": 8,
                "num_experts_per_tok": 3,
                "topk_method": "group_limited_greedy",
                "n_group": 4,
                "topk_group": 2,
                "routed_scaling_factor": 2.5,
            },
            "float16",
        ),
    },
)
DEEPSEEK3 = DEEPSEEK2.but(
    title="DeepSeek-V3, V3.1 and R1, Kimi K2",
    model_types=("deepseek_v3", "kimi_k2"),
    parts_of=("kimi_k25",),
    experts=partial(all_but_first, dense=3),
    biases=Biases(selection=True),
    defaults={"expert_scores": "sigmoid"},
    folder_defaults={"dense_layers": 3, "shared_experts": 1, "normalize_experts": True},
    tiny={
        "deepseek_v3": Tiny(
            {
                **TINY_LATENT_GROUPS,
                "routed_scaling_factor": 2.5,
            }
        ),
    },
)
