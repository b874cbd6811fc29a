"""Reads and writes the sizes of recurrent mixers, and which layers have one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from airllm.architectures.declaration import Architecture
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.recurrent import DeltaRule, Mamba2, Recurrent, ShortConv
from airllm.architectures.values import Values

# Kind of mixer -> its sizes: (key in GGUF files, key in config.json, others that some models have instead)
_KEYS: Mapping[type[Recurrent], Mapping[str, tuple[str, ...]]] = {
    ShortConv: {
        "channels": ("embedding_length", "hidden_size"),
        "taps": ("shortconv.l_cache", "conv_L_cache"),
    },
    DeltaRule: {
        "key_heads": ("ssm.group_count", "linear_num_key_heads"),
        "value_heads": ("ssm.time_step_rank", "linear_num_value_heads"),
        "key_dim": ("ssm.state_size", "linear_key_head_dim"),
        "value_dim": ("ssm.inner_size", "linear_value_head_dim"),
        "taps": ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    },
    Mamba2: {
        "heads": ("ssm.time_step_rank", "mamba_n_heads", "mamba_num_heads"),
        "groups": ("ssm.group_count", "mamba_n_groups", "n_groups"),
        "head_dim": ("ssm.inner_size", "mamba_d_head", "mamba_head_dim"),
        "state_dim": ("ssm.state_size", "mamba_d_state", "ssm_state_size"),
        "taps": ("ssm.conv_kernel", "mamba_d_conv", "conv_kernel"),
    },
}
# Sizes that a GGUF file has for all heads together: how many there are.
_OF_ALL: Mapping[type[Recurrent], Mapping[str, str]] = {
    DeltaRule: {"value_dim": "value_heads"},
    Mamba2: {"head_dim": "heads"},
}
# Flags: (keys in config.json, if any, the default, our name of the tensor that GGUF files have if it is set).
_FLAGS: Mapping[type[Recurrent], Mapping[str, tuple[tuple[str, ...], bool, str]]] = {
    DeltaRule: {"joined": ((), False, "delta.qkvz")},  # in the first GGUF files of Qwen3-Next
    Mamba2: {
        "filter_bias": (("mamba_conv_bias", "use_conv_bias"), True, "mamba.filter_bias"),
        "norm": (("mamba_rms_norm",), True, "mamba.scale"),
        "norm_first": (("mamba_norm_before_gate",), False, ""),
    },
}
_STEPS, _NO_LIMITS = "time_step_limit", ([0, inf], [0, {"__float__": "Infinity"}])
_INTERVAL = "full_attention_interval"  # every such layer has attention
_KV_HEADS = "attention.head_count_kv"  # 0 in a layer with such a mixer, if it is a list


def folder_recurrent(architecture: Architecture, values: Values, layers: int) -> dict[str, Any]:
    """The fields of ModelConfig for recurrent mixers, by config.json."""
    if not (kind := architecture.recurrent):
        return {}
    assert architecture.recurrent_layers
    having = architecture.recurrent_layers(values, layers)
    if not any(having):
        return {}
    named = {name: _present(values, keys) for name, (_, *keys) in _KEYS[kind].items()}
    sizes = {name: values.whole(key) for name, key in named.items()}
    flags: dict[str, Any] = {
        name: values.flag(_present(values, keys), default)
        for name, (keys, default, _) in _FLAGS.get(kind, {}).items()
        if keys
    }
    if (limit := values.get(_STEPS, (list,), "two numbers", None)) not in (None, *_NO_LIMITS):
        raise values.error(_STEPS, f"has value {limit}", "0 and Infinity: steps without a limit")
    if architecture.recurrent_multipliers:
        flags["multipliers"] = architecture.recurrent_multipliers(values)
    _check_shared(kind, values, sizes, named)
    mixer = kind(**sizes, **flags, **dict.fromkeys(architecture.recurrent_in_folders, True))
    return {"recurrent": mixer, "recurrent_layers": having}


def gguf_recurrent(
    architecture: Architecture, values: Values, layers: int, has: Callable[[str], bool]
) -> dict[str, Any]:
    """Those by a GGUF file. `has`: whether it has the tensor of this name of ours."""
    if not (kind := architecture.recurrent):
        return {}
    named = {name: gguf for name, (gguf, *_) in _KEYS[kind].items()}
    sizes = {name: values.whole(gguf) for name, gguf in named.items()}
    for name, count in _OF_ALL.get(kind, {}).items():
        if sizes[name] % sizes[count]:
            expected = f"a multiple of the {sizes[count]} heads"
            raise values.error(named[name], f"has value {sizes[name]}", expected)
        sizes[name] //= sizes[count]
    _check_shared(kind, values, sizes, named)
    how: dict[str, Any] = dict.fromkeys(architecture.recurrent_in_gguf, True)
    first = next(iter(kind(**sizes, **how).weights(0)))
    having = tuple(has(f"layers.{layer}.{first}") for layer in range(layers))
    if not any(having):
        return {}
    for name, (_, _, tensor) in _FLAGS.get(kind, {}).items():
        how[name] = bool(tensor) and has(f"layers.{having.index(True)}.{tensor}")
    mixer = kind(**sizes, **how)
    return {"recurrent": mixer, "recurrent_layers": having}


def _present(values: Values, keys: Sequence[str]) -> str:
    """The key that the file has; the first if it has none."""
    return next((key for key in keys if key in values), keys[0])


def _check_shared(
    kind: type[Recurrent], values: Values, sizes: Mapping[str, int], named: Mapping[str, str]
) -> None:
    """`named`: the key of each size."""
    if kind.shared and sizes[kind.shared[0]] % sizes[kind.shared[1]]:
        of, count = (sizes[name] for name in kind.shared)
        raise values.error(named[kind.shared[1]], f"has value {count}", f"a divisor of the {of} heads")


def recurrent_gguf_keys(config: ModelConfig) -> dict[str, Any]:
    """The keys of a GGUF file."""
    if not config.recurrent:
        return {}
    keys = _KEYS[type(config.recurrent)]
    found = {gguf: getattr(config.recurrent, name) for name, (gguf, *_) in keys.items()}
    for name, count in _OF_ALL.get(type(config.recurrent), {}).items():
        found[keys[name][0]] *= getattr(config.recurrent, count)
    if isinstance(config.recurrent, DeltaRule):
        return {**found, _INTERVAL: config.recurrent_layers.index(False) + 1}
    if config.beside or config.halves:
        return found
    kv_heads = [0 if each else config.kv_heads for each in config.recurrent_layers]
    return {**found, _KV_HEADS: kv_heads}
