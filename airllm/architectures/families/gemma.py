"""Gemma 1 and 2 (Gemma Team, 2024), 3 (2025) and 4 (2026). Folders of the first three store norm weights
minus one. From Gemma 2 on, norms also follow attention and feed-forward.

In Gemma 4, layers without a window have larger heads, of which only a part rotates, and their values may be
their keys. The last layers of its small models share keys and values, and each layer has an input of its own.
Its larger models have experts beside a dense feed-forward. EmbeddingGemma (2025) is a Gemma 3 whose tokens
attend to both sides.
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

from airllm.architectures.declaration import (
    REMOVED,
    SCALINGS,
    Architecture,
    Encoder,
    Norms,
    Rotary,
    Stacks,
    Tiny,
    Window,
)
from airllm.architectures.values import Values

_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}


def _scale_but_for(largest: int) -> Callable[[Mapping[str, Any]], float]:
    """The attention scale 1 / sqrt(head_dim). With `largest` layers, width / heads replaces head_dim."""

    def scale(found: Mapping[str, Any]) -> float:
        share = found["width"] / found["heads"]
        return 1 / sqrt(share if found["layers"] == largest else found["head_dim"])

    return scale


def _folder_scale(query_pre_attn_scalar: float) -> float:
    return 1 / sqrt(query_pre_attn_scalar)


GEMMA1 = Architecture(
    name="gemma",
    title="Gemma 1",
    model_types=("gemma",),
    norms=Norms(folder_less=1.0),
    tied=True,
    keys={"activation": {"of_folder": lambda said: "gelu_tanh"}},  # old files name another one
    defaults={"activation": "gelu_tanh", "embedding_scale": lambda found: sqrt(found["width"])},
    folder_defaults={"norm_eps": 1e-6, "kv_heads": 16, "head_dim": 256},
    tiny={
        "gemma": Tiny(
            {
                "head_dim": 16,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "num_hidden_layers": 2,
                "tie_word_embeddings": True,
            }
        ),
    },
)
GEMMA2 = Architecture(
    name="gemma2",
    title="Gemma 2",
    model_types=("gemma2",),
    norms=Norms(after=True, folder_less=1.0),
    window=Window(default=4096, in_gguf=4096, all_but_every=2),
    tied=True,
    keys={
        "activation": {"folder": "hidden_activation"},
        "attention_scale": {"folder": "query_pre_attn_scalar", "of_folder": _folder_scale},
    },
    defaults={
        "activation": "gelu_tanh",
        "embedding_scale": lambda found: sqrt(found["width"]),
        "attention_softcap": 50.0,
        "logit_softcap": 30.0,
    },
    folder_defaults={"norm_eps": 1e-6, "head_dim": 256, "attention_scale": 1 / 16},
    gguf_defaults={"attention_scale": _scale_but_for(46)},
    folder_names={"feed_forward.norm": "pre_feedforward_layernorm.weight"},
    tiny={
        "gemma2": Tiny(
            {
                "head_dim": 16,
                "sliding_window": 8,
                "query_pre_attn_scalar": 16,
                "attn_logit_softcapping": 2.0,
                "final_logit_softcapping": 3.0,
                "tie_word_embeddings": True,
            }
        ),
    },
)
GEMMA3 = GEMMA2.but(
    "gemma3",
    title="Gemma 3",
    model_types=("gemma3_text",),
    parts_of=("gemma3",),
    norms=Norms(after=True, q_and_k="head", folder_less=1.0),
    rotary=Rotary(theta=1e6, local_theta=1e4),
    window=Window(default=4096, all_but_every=6),
    defaults={"attention_softcap": None, "logit_softcap": None},
    folder_defaults={
        "heads": 8,
        "kv_heads": 4,
        "vocabulary": 262_208,
        "context": 131_072,
    },
    gguf_defaults={"attention_scale": _scale_but_for(62)},
    tiny={
        "gemma3": Tiny(
            {
                "head_dim": 16,
                "num_hidden_layers": 7,
                "intermediate_size": 32,
                "sliding_window": 8,
                "query_pre_attn_scalar": 16,
                "tie_word_embeddings": True,
                "rope_parameters": _ROPES,
            }
        ),
    },
)


def _all_if_enabled(values: Values, layers: int) -> tuple[bool, ...]:
    return (True,) * layers if values.flag("enable_moe_block", False) else ()


_TINY4 = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "intermediate_size": 32,
    "tie_word_embeddings": True,
    "vocab_size_per_layer_input": 80,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
GEMMA4 = GEMMA3.but(
    "gemma4",
    title="Gemma 4, for text",
    model_types=("gemma4_text",),
    parts_of=("gemma4", "gemma4_unified"),
    norms=Norms(after=True, q_and_k="head", values=True),
    rotary=Rotary(theta=1e6, local_theta=1e4, scalings=SCALINGS),
    window=Window(default=512, all_but_every=6),
    experts=_all_if_enabled,
    dense_and_experts=True,
    sizes_by_window=True,
    layer_scale=True,
    line_pieces=True,
    folder_stacks=Stacks(fused=True),
    gguf_stacks=Stacks(fused=True),
    numbers=("layer_input",),
    keys={
        "attention_scale": {"folder": "", "default": 1.0},
        "experts": {"folder": "num_experts"},
        "experts_used": {"folder": "top_k_experts"},
        "normalize_experts": {"gguf": "", "folder": ""},
    },
    folder_defaults={
        "layer_input": 256,
        "vocabulary": 262_144,
        "attention_scale": REMOVED,
        "experts": 0,
        "experts_used": 0,
        "expert_feed_forward": 0,
    },
    gguf_defaults={"attention_scale": REMOVED},
    gguf_names={"experts.gate": "ffn_gate_up_exps.weight", "experts.up": "ffn_gate_up_exps.weight"},
    folder_names={
        "experts.router": "router.proj.weight",
        "experts.gate": "experts.gate_up_proj",
        "experts.up": "experts.gate_up_proj",
        "experts.down": "experts.down_proj",
    },
    tiny={
        "gemma4": Tiny(
            {
                **_TINY4,
                "hidden_size_per_layer_input": 32,
                "num_kv_shared_layers": 2,
                "use_double_wide_mlp": True,
                "final_logit_softcapping": 3.0,
            }
        ),
        "gemma4_moe": Tiny(
            {
                **_TINY4,
                "num_global_key_value_heads": 1,
                "attention_k_eq_v": True,
                "hidden_size_per_layer_input": 0,
                "enable_moe_block": True,
                "num_experts": 4,
                "top_k_experts": 2,
                "moe_intermediate_size": 32,
            },
            "float16",
        ),
    },
)
EMBEDDING_GEMMA = GEMMA3.but(
    "gemma-embedding",
    title="EmbeddingGemma",
    model_types=(),
    marked_by=("gemma3_text", "use_bidirectional_attention"),
    encoder=Encoder(),
    gguf_defaults={"attention_scale": REMOVED},
    tiny={
        "gemma_embedding": Tiny(
            {
                "vocab_size": 80,
                "hidden_size": 32,
                "num_hidden_layers": 7,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "intermediate_size": 32,
                "max_position_embeddings": 64,
                "sliding_window": 12,
                "query_pre_attn_scalar": 16,
                "rope_parameters": _ROPES,
                "use_bidirectional_attention": True,
                **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
            }
        ),
    },
)
