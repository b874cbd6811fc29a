"""Granite 4-H (IBM, 2025): most layers mix tokens by Mamba-2, the others by attention without positions. A
variant has experts beside one that every token uses.
"""

from typing import Any

from airllm.architectures.declaration import Rotary, Stacks, Tiny
from airllm.architectures.families.granite import GRANITE, MULTIPLIERS
from airllm.architectures.recurrent import Mamba2
from airllm.architectures.values import Values, every_layer, kinds_of_layers

_MAMBA, _FULL = ("mamba", "linear_attention"), ("attention", "full_attention")  # older and newer names
_TYPE = "granitemoehybrid"
TINY_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_head": 16,
    "mamba_d_conv": 4,
}


def _mamba_layers(values: Values, layers: int) -> tuple[bool, ...]:
    """Which layers have Mamba-2: config.json lists all layers."""
    values.get("layer_types", (list,), "a list of texts", ...)
    return tuple(each in _MAMBA for each in kinds_of_layers(values, (*_MAMBA, *_FULL), layers))


GRANITE_HYBRID = GRANITE.but(
    "granitehybrid",
    title="Granite 4 and 4-H dense",
    model_types=(_TYPE,),
    rotary=Rotary(neighbours=True, optional=True),
    recurrent=Mamba2,
    recurrent_layers=_mamba_layers,
    recurrent_in_folders=("log_decay",),
    numbers=(*GRANITE.numbers, "shared_expert"),
    shared_gate=False,
    folder_fused_up=True,
    keys={"feed_forward": {"folder": "shared_intermediate_size"}},
    folder_names={
        "feed_forward.gate_up": "shared_mlp.input_linear.weight",
        "feed_forward.down": "shared_mlp.output_linear.weight",
    },
    refused={"mamba_proj_bias": "false: products without biases"},
    renamed={"layers_block_type": "layer_types"},
    tiny={
        "granite_hybrid": Tiny(
            {
                **MULTIPLIERS,
                **TINY_MAMBA,
                "layer_types": [_MAMBA[1], _FULL[1], _MAMBA[1]],
                "num_local_experts": 0,
                "num_experts_per_tok": 0,
                "shared_intermediate_size": 64,
                "tie_word_embeddings": True,
            }
        ),
        "granite_attention": Tiny(  # as the smallest models are; llama.cpp calls these granite
            {
                **MULTIPLIERS,
                **TINY_MAMBA,
                "layer_types": [_FULL[1]] * 2,
                "num_hidden_layers": 2,
                "num_local_experts": 0,
                "num_experts_per_tok": 0,
                "shared_intermediate_size": 64,
                "position_embedding_type": "rope",
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            },
            gguf=False,
        ),
    },
)
GRANITE_HYBRID_MOE = GRANITE_HYBRID.but(
    title="Granite 4-H with experts",
    model_types=(),
    marked_by=(_TYPE, "num_local_experts"),
    experts=every_layer,
    folder_stacks=Stacks(fused=True),
    keys={
        "feed_forward": {"folder": "intermediate_size"},
        "shared_expert": {"folder": "shared_intermediate_size"},
    },
    folder_defaults={"shared_expert": ...},
    folder_names={
        "experts.router": "block_sparse_moe.router.layer.weight",
        "experts.gate": "block_sparse_moe.input_linear.weight",
        "experts.up": "block_sparse_moe.input_linear.weight",
        "experts.down": "block_sparse_moe.output_linear.weight",
        "shared_expert.gate_up": "shared_mlp.input_linear.weight",
        "shared_expert.down": "shared_mlp.output_linear.weight",
    },
    tiny={
        "granite_hybrid_moe": Tiny(
            {
                **MULTIPLIERS,
                **TINY_MAMBA,
                "mamba_n_groups": 2,
                "layer_types": [_MAMBA[1], _FULL[1], _MAMBA[1]],
                "num_local_experts": 5,
                "num_experts_per_tok": 2,
                "intermediate_size": 32,
                "shared_intermediate_size": 64,
            },
            "float16",
            model_type=_TYPE,
        ),
    },
)
