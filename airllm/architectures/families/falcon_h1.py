"""Falcon-H1 (TII, 2025): each layer mixes tokens by attention and by Mamba-2 side by side, and adds both.
Folders have multipliers for most products; GGUF files have them in the weights.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

from airllm.architectures.declaration import Architecture, Rotary, Tiny
from airllm.architectures.keys import identity
from airllm.architectures.recurrent import Mamba2
from airllm.architectures.values import Values, every_layer

_IN, _OUT, _KEY = "attention_in_multiplier", "attention_out_multiplier", "key_multiplier"
_SSM, _MLP = "ssm_multipliers", "mlp_multipliers"


def _numbers(values: Values, key: str, count: int) -> tuple[float, ...]:
    """The numbers above 0 in a list; ones if there is no list."""
    found = values.get(key, (list,), expected := f"{count} numbers above 0", None)
    found = [1.0] * count if found is None else found
    if len(found) != count or any(type(each) not in (int, float) or each <= 0 for each in found):
        raise values.error(key, f"has value {found}", expected)
    return tuple(map(float, found))


def _attention_scale(values: Values, key: str, default: Any) -> float:
    """Of products of queries and keys, both of which the multiplier of attention's input scales."""
    heads = values.whole("hidden_size") // values.whole("num_attention_heads")
    scale = values.number(key, 1.0) * values.number(_IN, 1.0) ** 2
    return scale / sqrt(values.whole("head_dim", heads))


def _attended_scale(values: Values, key: str, default: Any) -> float:
    """Of attention's result: what values and it are multiplied by."""
    return values.number(key, 1.0) * values.number(_IN, 1.0)


def _of_mlp(place: int) -> Callable[[Values, str, Any], float]:
    return lambda values, key, default: _numbers(values, key, 2)[place]


def _of_mamba(values: Values) -> tuple[float, ...]:
    """Of Mamba-2's gate, values, input and output vectors, steps, and result."""
    each = values.number("ssm_in_multiplier", 1.0)
    parts = (each * part for part in _numbers(values, _SSM, 5))
    return *parts, values.number("ssm_out_multiplier", 1.0)


_NO_BIAS = "false: products without biases"
_MULTIPLIERS = {
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.25,
    _IN: 0.5,
    _OUT: 2.0,
    _KEY: 0.5,
    "ssm_in_multiplier": 2.0,
    "ssm_out_multiplier": 0.5,
    _SSM: [0.5, 1.0, 2.0, 0.25, 0.5],
    _MLP: [2.0, 0.5],
}
_SIZES = {
    "head_dim": 16,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "num_hidden_layers": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}
FALCON_H1 = Architecture(
    name="falcon-h1",
    title="Falcon-H1",
    model_types=("falcon_h1",),
    rotary=Rotary(theta=1e4),
    recurrent=Mamba2,
    recurrent_layers=every_layer,
    recurrent_in_folders=("log_decay",),
    recurrent_multipliers=_of_mamba,
    beside=True,
    numbers=("embedding_scale", "logit_scale", "attended_scale", "gate_scale", "down_scale"),
    keys={
        "attention_scale": {"gguf": "", "folder": _KEY, "check": _attention_scale},
        "attended_scale": {"folder": _OUT, "check": _attended_scale},
        "gate_scale": {"folder": _MLP, "check": _of_mlp(0)},
        "down_scale": {"folder": _MLP, "check": _of_mlp(1)},
        "embedding_scale": {"gguf": ""},
        "logit_scale": {"gguf": "", "folder": "lm_head_multiplier", "of_folder": identity},
    },
    folder_defaults={"norm_eps": 1e-5},
    gguf_names={"feed_forward.norm": "ffn_norm"},  # as llama.cpp calls it: without .weight
    folder_names={
        "output_norm": "final_layernorm.weight",
        "feed_forward.norm": "pre_ff_layernorm.weight",
        "feed_forward.gate": "feed_forward.gate_proj.weight",
        "feed_forward.up": "feed_forward.up_proj.weight",
        "feed_forward.down": "feed_forward.down_proj.weight",
    },
    refused={
        "attention_bias": _NO_BIAS,
        "mlp_bias": _NO_BIAS,
        "mamba_proj_bias": _NO_BIAS,
        "projectors_bias": _NO_BIAS,
    },
    tiny={
        "falcon_h1": Tiny({**_SIZES, **_MULTIPLIERS, "mamba_n_groups": 2, "mamba_norm_before_gate": False}),
        "falcon_h1_norm": Tiny(
            {
                **_SIZES,
                **_MULTIPLIERS,
                "mamba_n_groups": 2,
                "mamba_rms_norm": True,
                "mamba_norm_before_gate": True,
            },
            "float16",
            gguf=False,  # which cannot say what comes first
        ),
    },
)
