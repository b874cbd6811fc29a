"""The dense feed-forward of a decoder layer, written with the library's own ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from airllm.architectures.model_config import ModelConfig
from airllm.backends.device.experts import Activation
from airllm.engine.layers.activations import scaled
from airllm.files.weight_file import Stored
from airllm.memory.layers import Layer

GELU = {"gelu_tanh": "tanh", "gelu": "none"}  # an activation: the approximation of the op `gelu`


def feed_forward(ops: Any, x: np.ndarray, layer: Layer, part: str = "feed_forward") -> np.ndarray:
    """The layer's feed-forward, or its shared expert if `part` is "shared_expert"."""
    parts = (f"{name}{kind}" for name in ("gate", "up", "down") for kind in ("", "_bias"))
    weights = {name: found for name in parts if (found := layer.get(f"{part}.{name}")) is not None}
    return mlp(ops, x, layer.config, weights)


def mlp(ops: Any, x: np.ndarray, c: ModelConfig, weights: Mapping[str, Stored]) -> np.ndarray:
    """down(act(gate(x)) * up(x)), or down(act(up(x))) if there is no gate, each matrix with its bias if it
    has one.
    """

    def multiply(x: np.ndarray, name: str) -> np.ndarray:
        return ops.linear(x, weights[name], weights.get(f"{name}_bias"))

    if "gate" in weights:
        gate = scaled(multiply(x, "gate"), c.gate_scale)
        activated = activate(ops, gate, multiply(x, "up"), c)
    else:
        activated = activate_alone(ops, multiply(x, "up"), c)
    return scaled(multiply(activated, "down"), c.down_scale)


def activate(ops: Any, gate: np.ndarray, up: np.ndarray, c: ModelConfig) -> np.ndarray:
    """`up`, times what the model's activation makes of `gate`."""
    if c.activation == "silu":
        return ops.swiglu(gate, up)
    if c.activation == "swiglu_clamped":
        gate, up = np.minimum(gate, c.swiglu_limit), np.clip(up, -c.swiglu_limit, c.swiglu_limit)
        return ops.swiglu(c.swiglu_alpha * gate, (up + 1) / c.swiglu_alpha)
    return ops.geglu(gate, up, GELU[c.activation])


def activate_alone(ops: Any, x: np.ndarray, c: ModelConfig) -> np.ndarray:
    """What the model's activation makes of `x`, which no gate multiplies."""
    if c.activation == "relu2":
        positive = np.maximum(x, 0)
        return np.multiply(positive, positive, out=positive)
    return ops.silu(x) if c.activation == "silu" else ops.gelu(x, GELU[c.activation])


def device_activation(c: ModelConfig) -> Activation:
    """What `activate`, or `activate_alone`, computes, by the names of devices."""
    if c.activation == "swiglu_clamped":
        return Activation("clamped", c.swiglu_limit, c.swiglu_alpha)
    return Activation(GELU.get(c.activation, c.activation))
