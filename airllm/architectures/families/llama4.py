"""Llama 4 (Meta, 2025): attention in chunks, with norms of queries and keys where they rotate; every fourth
layer attends to all tokens and does not rotate; a router whose sigmoids scale the input of experts.

GGUF files do not say the width of chunks, how queries are scaled, and whether they are normalized.
"""

from airllm.architectures.declaration import Architecture, Norms, Rotary, Stacks, Tiny, Window
from airllm.architectures.keys import number_of
from airllm.architectures.values import Values

_TINY = {
    "head_dim": 8,
    "intermediate_size": 32,
    "intermediate_size_mlp": 64,
    "num_local_experts": 4,
}


def _some_layers(values: Values, layers: int) -> tuple[bool, ...]:
    listed = values.get("moe_layers", (list,), "a list of layers", None)
    if listed is not None:
        return tuple(layer in listed for layer in range(layers))
    step = values.whole("interleave_moe_layer_step", 1)
    return tuple((layer + 1) % step == 0 for layer in range(layers))


LLAMA4 = Architecture(
    name="llama4",
    title="Llama 4, for text",
    model_types=("llama4_text",),
    parts_of=("llama4",),
    norms=Norms(q_and_k="rotated", q_and_k_flag=("use_qk_norm", True), none_of_experts=128),
    rotary=Rotary(
        theta=5e5,
        neighbours=True,
        neighbours_in_folders=True,
        none_every=4,
        nope_temperature=(0.1, 8192),
    ),
    window=Window(default=8192, in_gguf=8192, all_but_every=4, chunked=True),
    experts=_some_layers,
    scales_input=True,
    shared_gate=False,
    folder_stacks=Stacks(transposed=True, fused=True),
    numbers=("shared_expert", "moe_step"),
    keys={
        "feed_forward": {"folder": "intermediate_size_mlp"},
        "expert_feed_forward": {"folder": "intermediate_size"},
        "normalize_experts": {"gguf": "", "folder": "", "default": False},
        "shared_expert": {"gguf": "", "folder": "", "default": number_of("expert_feed_forward")},
        "moe_step": {"folder": "interleave_moe_layer_step"},
    },
    defaults={"expert_scores": "sigmoid"},
    folder_defaults={
        "norm_eps": 1e-5,
        "kv_heads": 8,
        "head_dim": 128,
        "experts": 16,
        "experts_used": 1,
    },
    folder_names={
        "feed_forward.gate": "feed_forward.gate_proj.weight",
        "feed_forward.up": "feed_forward.up_proj.weight",
        "feed_forward.down": "feed_forward.down_proj.weight",
        "experts.router": "feed_forward.router.weight",
        "experts.gate": "feed_forward.experts.gate_up_proj",
        "experts.up": "feed_forward.experts.gate_up_proj",
        "experts.down": "feed_forward.experts.down_proj",
        "shared_expert.gate": "feed_forward.shared_expert.gate_proj.weight",
        "shared_expert.up": "feed_forward.shared_expert.up_proj.weight",
        "shared_expert.down": "feed_forward.shared_expert.down_proj.weight",
    },
    tiny={
        "llama4": Tiny(
            {
                **_TINY,
                "num_hidden_layers": 4,
                "interleave_moe_layer_step": 2,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 500.0,
                    "factor": 16.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 1.0,
                    "original_max_position_embeddings": 32,
                },
            }
        ),
        "llama4_chunks": Tiny(
            {
                "text_config": {
                    **_TINY,
                    "num_hidden_layers": 3,
                    "moe_layers": [0, 2],
                    "num_experts_per_tok": 2,
                    "no_rope_layers": [1, 0, 1],
                    "attention_chunk_size": 8,
                    "floor_scale": 4,
                    "attn_scale": 0.5,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
                },
                "vision_config": {
                    "hidden_size": 16,
                    "intermediate_size": 16,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 1,
                    "vision_output_dim": 16,
                    "image_size": 8,
                    "patch_size": 4,
                    "projector_input_dim": 16,
                    "projector_output_dim": 16,
                },
            },
            "float16",
            gguf=False,
            model_type="llama4",
        ),
    },
)
