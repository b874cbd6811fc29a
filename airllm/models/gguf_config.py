"""The configuration of a model in a GGUF file's metadata."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from airllm.models.config import ModelConfig, Rope
from airllm.models.config_values import MOST_LAYERS, PATTERN, Values, checked, every, head_dim_of
from airllm.models.gguf_file import GgufFile
from airllm.models.weights import ModelFileError

_KEYS = {
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_dim": "rope.dimension_count",
    "experts_used": "expert_used_count",
}
_ACTIVATIONS = {
    "llama": "silu",
    "qwen2": "silu",
    "qwen3": "silu",
    "qwen3moe": "silu",
    "gemma2": "gelu_tanh",
    "gemma3": "gelu_tanh",
    "phi3": "silu",
}
_FACTORS = "rope_factors_"
_LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the one size whose attention scale is not head_dim's


def gguf_config(file: GgufFile) -> ModelConfig:
    """The configuration in a GGUF file's metadata."""
    general = Values(file.path, file.metadata)
    name = general.text("general.architecture")
    if name not in _ACTIVATIONS:
        wanted = f"one of {', '.join(_ACTIVATIONS)}"
        raise general.error("general.architecture", f"has value {name!r}", wanted)
    values = Values(file.path, file.metadata, f"{name}.")
    width, heads = values.whole("embedding_length"), values.whole("attention.head_count")
    layers = values.whole("block_count", most=MOST_LAYERS)
    head_dim = head_dim_of(values, "attention.key_length", width, heads)
    if values.whole("attention.value_length", head_dim) != head_dim:
        raise values.error("attention.value_length", "differs from key_length", f"{head_dim}")
    experts = 0 if values.values.get(f"{name}.expert_count") == 0 else values.whole("expert_count", 0)
    gemma = name.startswith("gemma")
    windows = _windows(values, name, layers)
    feed_forward = values.whole("feed_forward_length")
    config = ModelConfig(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=values.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        feed_forward=feed_forward,
        vocabulary=_vocabulary(file, values),
        context=values.whole("context_length"),
        rope=_rope(values, name, head_dim, _scaling(file, values)),
        local_rope=_local_rope(values, name, head_dim),
        norm_eps=values.number("attention.layer_norm_rms_epsilon"),
        activation=_ACTIVATIONS[name],
        attention_scale=_scale(values, name, width, heads, layers, head_dim),
        windows=windows,
        embedding_scale=sqrt(width) if gemma else 1.0,
        attention_softcap=values.number("attn_logit_softcapping", 50.0 if name == "gemma2" else None),
        logit_softcap=values.number("final_logit_softcapping", 30.0 if name == "gemma2" else None),
        qkv_bias="blk.0.attn_q.bias" in file,
        output_bias="blk.0.attn_output.bias" in file,
        qk_norm=name in ("qwen3", "qwen3moe", "gemma3"),
        post_norms=gemma,
        fused=name == "phi3",
        tied_embeddings="output.weight" not in file,
        experts=experts,
        experts_used=values.whole("expert_used_count") if experts else 0,
        expert_feed_forward=values.whole("expert_feed_forward_length", feed_forward) if experts else 0,
        normalize_experts=values.flag("expert_weights_norm", True),
        moe_layers=(True,) * layers if experts else (),
    )
    return checked(values, _KEYS, config)


def _vocabulary(file: GgufFile, values: Values) -> int:
    """As many as the embedding has rows: `vocab_size` is optional, and may leave out padding."""
    if "token_embd.weight" not in file:
        raise ModelFileError(file.path, "tensor token_embd.weight", "is missing", "the embedding of tokens")
    shape = file.tensors["token_embd.weight"].shape
    width = values.whole("embedding_length")
    if len(shape) != 2 or shape[1] != width:
        wanted = f"(tokens, {width}), as key {values.under}embedding_length says"
        raise ModelFileError(file.path, "tensor token_embd.weight", f"has shape {shape}", wanted)
    return shape[0]


def _windows(values: Values, name: str, layers: int) -> tuple[int | None, ...]:
    window = values.values.get(f"{values.under}attention.sliding_window")
    default = 4096 if name == "gemma2" else None
    window = None if window == 0 else values.whole("attention.sliding_window", default)
    pattern = values.values.get(key := f"{values.under}attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        if len(pattern) != layers:
            found = f"has {len(pattern)} items"
            raise values.error(key.removeprefix(values.under), found, f"{layers}, one for each layer")
        return tuple(window if windowed else None for windowed in pattern)
    return every(values.whole("attention.sliding_window_pattern", PATTERN.get(name, 0)), window, layers)


def _rope(values: Values, name: str, head_dim: int, scaling: dict[str, Any] | None) -> Rope:
    dim = values.whole("rope.dimension_count", head_dim)
    theta = values.number("rope.freq_base", 1e6 if name == "gemma3" else 1e4)
    return Rope(theta, dim, interleaved=name == "llama", scaling=scaling)


def _local_rope(values: Values, name: str, head_dim: int) -> Rope | None:
    if name != "gemma3":
        return None
    dim = values.whole("rope.dimension_count", head_dim)
    return Rope(values.number("rope.freq_base_swa", 1e4), dim)


def _scaling(file: GgufFile, values: Values) -> dict[str, Any] | None:
    """In config.json's words. Llama 3's and Phi-3's factors are tensors, not keys."""
    known = {"none": None, "linear": "linear", "yarn": "yarn", "longrope": "longrope"}
    kind = values.one_of("rope.scaling.type", known, _left_out(file, values))
    if kind is None:
        return None
    found: dict[str, Any] = {"rope_type": kind}
    names = {}
    if kind == "longrope":
        _check_factors(file, values)
        names = {"attn_factor": "attention_factor"}
    else:
        found["factor"] = values.number("rope.scaling.factor")
    if kind == "yarn":
        names = {
            "yarn_attn_factor": "attention_factor",
            "yarn_beta_fast": "beta_fast",
            "yarn_beta_slow": "beta_slow",
        }
    if kind != "linear":
        length = values.whole("rope.scaling.original_context_length", values.whole("context_length"))
        found["original_max_position_embeddings"] = length
    for theirs, ours in names.items():
        if (value := values.number(f"rope.scaling.{theirs}", None)) is not None:
            found[ours] = value
    return found


def _left_out(file: GgufFile, values: Values) -> str:
    """The scaling that a file without rope.scaling.type means: converters write none for Phi-3."""
    if f"{_FACTORS}long.weight" in file:
        return "longrope"
    return "linear" if f"{values.under}rope.scaling.factor" in values.values else "none"


def _check_factors(file: GgufFile, values: Values) -> None:
    for side in ("short", "long"):
        if (name := f"{_FACTORS}{side}.weight") not in file:
            wanted = f"the factors of {values.under}rope.scaling.type longrope"
            raise ModelFileError(file.path, f"tensor {name}", "is missing", wanted)


def _scale(values: Values, name: str, width: int, heads: int, layers: int, head_dim: int) -> float:
    of = width / heads if _LARGEST.get(name) == layers else head_dim
    return values.number("attention.scale", 1 / sqrt(of))
