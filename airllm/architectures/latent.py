"""Reads and writes the sizes of latent attention (`Latent` in `layer_spec.py`), which files count otherwise
than those of other attention.

config.json has the parts of a head's query. GGUF files count what a token keeps as one key-value head; older
ones count the heads that are made of it. Both are read to the same configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log
from typing import Any

from airllm.architectures.layer_spec import Rope
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.values import Values

_ROTATED = "qk_rope_head_dim"
_OLDER = {
    "attention.key_length_mla": "attention.key_length",
    "attention.value_length_mla": "attention.value_length",
}


def query_dim(values: Values, key: str, default: Any) -> int:
    """Values of a head's query: the sum of two keys of config.json."""
    if key in _OLDER:
        return of_heads(values, key, default)
    if not values.flag("rope_interleave", True):
        raise values.error("rope_interleave", "is false", "true: rotated pairs are neighbours")
    return values.whole(key) + rotated_dim(values)


def rotated_dim(values: Values) -> int:
    """How many of them rotate, by config.json."""
    return values.whole(_ROTATED)


def of_heads(values: Values, key: str, default: Any) -> int:
    """A size of heads; older GGUF files, which do not count the latent as a head, have it in another key."""
    return values.whole(key, values.whole(_OLDER[key]) if key in _OLDER and key not in values else ...)


LATENT_KEYS: dict[str, dict[str, Any]] = {
    "head_dim": {
        "gguf": "attention.key_length_mla",
        "folder": "qk_nope_head_dim",
        "check": query_dim,
        "default": ...,
    },
    "value_dim": {"check": of_heads, "default": ...},
    "kv_rank": {"default": ...},
    "kv_heads": {"gguf": "", "folder": "", "default": 1},
    "attention_scale": {"gguf": ""},
}
"""Of an architecture with latent attention: what differs from `KEYS`."""


def latent_ropes(values: Values, ropes: Mapping[str, Any]) -> dict[str, Any]:
    """The rotations of config.json. They are of whole parts of heads, whatever part of a head it names."""
    return {**ropes, "rope": replace(ropes["rope"], dim=rotated_dim(values))}


def latent_fields(found: Mapping[str, Any], rope: Rope) -> dict[str, Any]:
    """The fields of ModelConfig that depend on the rotation: YaRN scales the scores of whole heads."""
    return {"attention_scale": found["attention_scale"] * _mscale(rope) ** 2}


def _mscale(rope: Rope) -> float:
    scaling = rope.scaling or {}
    factor, weight = scaling.get("factor", 1), scaling.get("mscale_all_dim") or 0
    return 0.1 * weight * log(factor) + 1 if factor > 1 else 1.0


def gguf_scores(values: Values, found: Mapping[str, Any]) -> dict[str, str]:
    """What makes scores of the router's logits, where a GGUF file does not say: GLM-4.7-Flash's may not. In
    these models, experts that are chosen with a bias have sigmoids.
    """
    silent = "expert_gating_func" not in values
    return {"expert_scores": "sigmoid"} if silent and found["selection_bias"] else {}


def latent_keys(config: ModelConfig) -> dict[str, int]:
    """Keys of a GGUF file that count the row which a token keeps as one key-value head."""
    row = config.kv_rank + config.rope.dim
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": row,
        "attention.value_length": config.kv_rank,
    }
