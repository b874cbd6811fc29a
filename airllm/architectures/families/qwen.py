"""Qwen 2 (Yang et al., 2024) and 3 (Yang et al., 2025), their mixtures of experts, and the text part of their
vision models.
"""

from airllm.architectures.declaration import (
    REMOVED,
    SCALINGS,
    Architecture,
    Biases,
    Norms,
    Rotary,
    Tiny,
    Window,
)
from airllm.architectures.keys import number_of
from airllm.architectures.values import Values

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
_SHARED_EXPERT = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
TINY_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 1,
    "patch_size": 2,
    "out_hidden_size": 32,
}
# Positions in text, height and width, which are equal for text.
_MULTI_AXIS = SCALINGS | {"mrope": "default"}


def sparse_layers(values: Values, layers: int) -> tuple[bool, ...]:
    """Which layers have experts: every n-th, except listed ones."""
    step = values.whole("decoder_sparse_step", 1)
    dense = values.get("mlp_only_layers", (list,), "a list of layers", [])
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))


QWEN2 = Architecture(
    name="qwen2",
    title="Qwen 2 and 2.5, DeepSeek-R1-Distill-Qwen",
    model_types=("qwen2",),
    rotary=Rotary(scalings=_MULTI_AXIS),
    window=Window(default=4096, switch="use_sliding_window", first=28),
    biases=Biases(qkv=True, output=False),
    folder_defaults={"norm_eps": 1e-6},
    tiny={
        "qwen2": Tiny({"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}),
        "qwen2_window": Tiny(
            {
                "num_attention_heads": 2,
                "use_sliding_window": True,
                "sliding_window": 8,
                "max_window_layers": 1,
                "rope_parameters": _YARN,
            },
            "float16",
            gguf=False,
        ),
    },
)
QWEN2VL = QWEN2.but(
    "qwen2vl",
    title="Qwen 2-VL and 2.5-VL, for text",
    model_types=("qwen2_vl_text", "qwen2_5_vl_text"),
    parts_of=("qwen2_vl", "qwen2_5_vl"),
    rotary=Rotary(theta=1e6, scalings=_MULTI_AXIS),
    folder_defaults={"norm_eps": 1e-5},
    tiny={
        "qwen2_5_vl": Tiny(
            {
                "text_config": {
                    "num_attention_heads": 2,
                    "num_key_value_heads": 1,
                    "num_hidden_layers": 2,
                    "rope_parameters": {
                        "rope_type": "default",
                        "rope_theta": 1000.0,
                        "mrope_section": [4, 2, 2],
                    },
                },
                "vision_config": {**TINY_VISION, "fullatt_block_indexes": [0]},
            },
            model_type="qwen2_5_vl",
        ),
    },
)
QWEN2MOE = QWEN2.but(
    "qwen2moe",
    title="Qwen 1.5-MoE and 2-MoE",
    model_types=("qwen2_moe",),
    window=Window(default=4096, switch="use_sliding_window", all_but_every=2, until=28),
    experts=sparse_layers,
    numbers=("shared_expert",),
    biases=Biases(qkv=("qkv_bias", True), output=False),
    folder_defaults={"expert_feed_forward": ..., "shared_expert": ...},
    gguf_defaults={"shared_expert": number_of("feed_forward")},
    defaults={"normalize_experts": False},
    tiny={
        "qwen2_moe": Tiny(
            {
                **_SHARED_EXPERT,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "num_experts": 4,
                "num_hidden_layers": 2,
            }
        ),
        "qwen2_moe_some": Tiny(
            {
                **_SHARED_EXPERT,
                "num_experts": 3,
                "num_hidden_layers": 4,
                "mlp_only_layers": [1],
                "decoder_sparse_step": 2,
                "norm_topk_prob": True,
                "qkv_bias": False,
                "use_sliding_window": True,
                "sliding_window": 8,
                "max_window_layers": 2,
            },
            "float16",
            gguf=False,
        ),
    },
)
QWEN3 = QWEN2.but(
    "qwen3",
    title="Qwen 3",
    model_types=("qwen3",),
    norms=Norms(q_and_k="head"),
    biases=Biases(),
    folder_defaults={"head_dim": 128},
    tiny={
        "qwen3": Tiny({"head_dim": 32, "num_hidden_layers": 2, "rope_parameters": _YARN}),
    },
)
QWEN3VL = QWEN3.but(
    "qwen3vl",
    title="Qwen 3-VL, for text",
    model_types=("qwen3_vl_text",),
    parts_of=("qwen3_vl",),
    rotary=Rotary(theta=5e5, scalings=_MULTI_AXIS),
    tiny={
        "qwen3_vl": Tiny(
            {
                "text_config": {
                    "head_dim": 16,
                    "num_hidden_layers": 2,
                    "rope_parameters": {
                        "rope_type": "default",
                        "rope_theta": 1000.0,
                        "mrope_interleaved": True,
                        "mrope_section": [3, 3, 2],
                    },
                },
                "vision_config": {
                    **TINY_VISION,
                    "num_position_embeddings": 16,
                    "deepstack_visual_indexes": [0],
                },
            },
            model_type="qwen3_vl",
        ),
    },
)
QWEN3MOE = QWEN3.but(
    "qwen3moe",
    title="Qwen 3 with experts, Qwen 3-Coder",
    model_types=("qwen3_moe",),
    window=Window(default=4096, switch="use_sliding_window", listed=False),
    experts=sparse_layers,
    folder_defaults={"head_dim": REMOVED, "normalize_experts": False, "expert_feed_forward": ...},
    tiny={
        "qwen3_moe": Tiny(
            {
                "head_dim": 16,
                "num_experts": 6,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 32,
                "num_hidden_layers": 2,
                "norm_topk_prob": True,
            }
        ),
        "qwen3_moe_some": Tiny(
            {
                "head_dim": 16,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "num_hidden_layers": 4,
                "mlp_only_layers": [1],
                "decoder_sparse_step": 2,
                "norm_topk_prob": False,
            },
            "float16",
            gguf=False,
        ),
    },
)
QWEN3VLMOE = QWEN3MOE.but(
    "qwen3vlmoe",
    title="Qwen 3-VL with experts, for text",
    model_types=(),  # unsupported: folders have all experts of a layer in one tensor
)
