"""Qwen3-Next (Alibaba, 2025), Qwen 3.5 and 3.6 (2026): three of four layers have the gated delta rule, the
others attention whose result is gated.
"""

from typing import Any

from airllm.architectures.declaration import SCALINGS, Architecture, Biases, Norms, Rotary, Stacks, Tiny
from airllm.architectures.families.qwen import TINY_VISION, sparse_layers
from airllm.architectures.keys import number_of
from airllm.architectures.recurrent import DeltaRule
from airllm.architectures.values import Values, every_layer, kinds_of_layers

_LINEAR, _FULL = "linear_attention", "full_attention"
_SIZES: dict[str, Any] = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "head_dim": 16,
    "layer_types": [_LINEAR, _LINEAR, _FULL],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
}
_EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}


def _delta_layers(values: Values, layers: int) -> tuple[bool, ...]:
    """Which layers have the delta rule: config.json lists all, or says that every n-th has attention."""
    if kinds := kinds_of_layers(values, (_LINEAR, _FULL), layers):
        return tuple(each == _LINEAR for each in kinds)
    every = values.whole("full_attention_interval", 4)
    return tuple((layer + 1) % every != 0 for layer in range(layers))


QWEN3NEXT = Architecture(
    name="qwen3next",
    title="Qwen 3-Next, Qwen 3-Coder-Next",
    model_types=("qwen3_next",),
    norms=Norms(q_and_k="head", folder_less=1.0),
    rotary=Rotary(part=0.25, scalings=SCALINGS | {"mrope": "default"}),
    biases=Biases(),
    output_gate=True,
    recurrent=DeltaRule,
    recurrent_layers=_delta_layers,
    recurrent_in_folders=("log_decay", "joined", "paired"),
    recurrent_in_gguf=("paired",),
    experts=sparse_layers,
    numbers=("shared_expert",),
    folder_defaults={"norm_eps": 1e-6, "expert_feed_forward": ..., "shared_expert": ..., "head_dim": 256},
    gguf_names={"feed_forward.norm": "post_attention_norm.weight"},
    tiny={
        "qwen3_next": Tiny({**_SIZES, **_EXPERTS}),
    },
)
QWEN35 = QWEN3NEXT.but(
    "qwen35",
    title="Qwen 3.5 and 3.6, for text",
    model_types=("qwen3_5_text",),
    parts_of=("qwen3_5",),
    recurrent_in_folders=("log_decay",),
    recurrent_in_gguf=("tiled",),
    experts=None,
    tiny={
        "qwen3_5": Tiny(
            {
                "text_config": {
                    **_SIZES,
                    "num_key_value_heads": 1,
                    "num_attention_heads": 2,
                    "rope_parameters": {
                        **_SIZES["rope_parameters"],
                        "mrope_interleaved": True,
                        "mrope_section": [2, 1, 1],
                    },
                },
                "vision_config": {**TINY_VISION, "num_position_embeddings": 16},
            },
            "float16",
            model_type="qwen3_5",
        ),
    },
)
QWEN35MOE = QWEN35.but(
    "qwen35moe",
    title="Qwen 3.5 and 3.6 with experts, for text",
    model_types=("qwen3_5_moe_text",),
    parts_of=("qwen3_5_moe",),
    experts=every_layer,
    folder_stacks=Stacks(fused=True),
    stacked_names={
        "experts.gate": "mlp.experts.gate_up_proj",
        "experts.up": "mlp.experts.gate_up_proj",
        "experts.down": "mlp.experts.down_proj",
    },
    keys={"feed_forward": {"default": number_of("width")}},  # no layer has a dense one
    tiny={
        "qwen3_5_moe": Tiny({**_SIZES, **_EXPERTS}),
    },
)
