"""Gemma 1 and 2 (Gemma Team, 2024) and 3 (2025). Folders store norm weights minus one. From Gemma 2 on, norms
also follow attention and feed-forward.
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

from airllm.architectures.declaration import Architecture, Norms, Rotary, Tiny, Window

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
