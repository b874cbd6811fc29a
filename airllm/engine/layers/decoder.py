"""One decoder layer, written with the library's own ops. It defines the mathematics of every model.

One function serves all architectures (`airllm/architectures/`). The configuration says what differs: windows,
scales, soft caps, the activation, which norms exist, layers without rotary positions.

The rows of `x` are the tokens of one or several sequences, concatenated. Only attention separates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from airllm.architectures.layer_spec import Latent
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.recurrent import Recurrent
from airllm.engine.layers.attention import attention
from airllm.engine.layers.experts import dense_and_experts, experts_or_dense
from airllm.engine.layers.feed_forward import GELU
from airllm.engine.layers.latent_attention import latent_attention
from airllm.engine.layers.recurrent import mix_recurrently
from airllm.engine.layers.rows import Angles, Rows
from airllm.memory.layers import Layer


def decoder_layer(
    ops: Any,
    x: np.ndarray,
    layer: Layer,
    angles: Angles | None,
    rows: Sequence[Rows],
    inputs: np.ndarray | None = None,
) -> np.ndarray:
    """Run one layer on `x` (rows, width), float32, and return its output, of the same shape and dtype.

    The rows' keys and values are appended to their caches. `ops` has the tensor operations as methods: a
    `KernelBackend`. `angles` is None if the layer has no rotary positions. `inputs` (rows, layer_input), if
    the model has them, are what `layer_inputs.py` found for this layer.
    """
    c = layer.config
    if c.halves:
        return _half_a_layer(ops, x, layer, angles, rows)
    normed = normalize(ops, x, layer["attention.norm"], c) if c.pre_norms else x
    change = _finish_half(ops, mix_tokens(ops, normed, layer, angles, rows), layer, "attention")
    if c.parallel:
        x = np.add(x, change, out=change)
    elif c.pre_norms and not c.norm:
        x, normed = ops.add_rms_norm(x, change, layer["feed_forward.norm"], c.norm_eps)
    else:
        x = np.add(x, change, out=change)
        normed = normalize(ops, x, layer["feed_forward.norm"], c) if c.pre_norms else x
    if layer.experts and layer.spec.feed_forward.width:
        change = dense_and_experts(ops, x, normed, layer)
    else:
        change = experts_or_dense(ops, normed, layer)
    change = _finish_half(ops, change, layer, "feed_forward")
    x = np.add(x, change, out=change)  # allocating the result would cost more than the sum
    if inputs is not None:
        x += _of_input(ops, x, layer, inputs)
    if c.layer_scale:
        x *= layer["scale"]
    return x


def _half_a_layer(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None, rows: Sequence[Rows]
) -> np.ndarray:
    """A layer that is a mixer alone, or a feed-forward alone."""
    half = "attention" if layer.spec.mixer else "feed_forward"
    normed = normalize(ops, x, layer[f"{half}.norm"], layer.config)
    if layer.spec.mixer:
        change = mix_tokens(ops, normed, layer, angles, rows)
    else:
        change = experts_or_dense(ops, normed, layer)
    change = _finish_half(ops, change, layer, half)
    return np.add(x, change, out=change)


def decoder_layers(
    ops: Any,
    x: np.ndarray,
    layers: Sequence[Layer],
    angles: Sequence[Angles],
    rows: Sequence[Rows],
    inputs: np.ndarray | None = None,
) -> np.ndarray:
    """Run some layers. `angles` has those of each rotation of the model, `inputs` (all layers, rows,
    layer_input) those of `decoder_layer`.
    """
    for layer in layers:
        rope = layer.config.rope_of(layer.index)
        own = angles[rope is layer.config.local_rope] if rope else None
        x = decoder_layer(ops, x, layer, own, rows, None if inputs is None else inputs[layer.index])
    return x


def normalize(ops: Any, x: np.ndarray, weights: Any, c: ModelConfig) -> np.ndarray:
    """`x` (rows, width) by the norm of the model. `weights`: those of `open_norm`."""
    if not c.norm:
        return ops.rms_norm(x, weights, c.norm_eps)
    weight, bias = (weights[0], weights[1]) if c.norm_bias else (weights, None)
    return ops.layer_norm(x, weight, bias, c.norm_eps)


def _of_input(ops: Any, x: np.ndarray, layer: Layer, inputs: np.ndarray) -> np.ndarray:
    """What a layer adds for its own input: `inputs` weighted by the hidden state."""
    c = layer.config
    weighted = ops.geglu(ops.linear(x, layer["input.gate"]), inputs, GELU[c.activation])
    return ops.rms_norm(ops.linear(weighted, layer["input.projection"]), layer["input.post_norm"], c.norm_eps)


def _finish_half(ops: Any, change: np.ndarray, layer: Layer, half: str) -> np.ndarray:
    """What attention or feed-forward adds to the hidden state: its result all-reduced, normalized, scaled."""
    c = layer.config
    layer.all_reduce(change)
    if c.post_norms:
        change = normalize(ops, change, layer[f"{half}.post_norm"], c)
    if c.residual_scale != 1:
        change *= np.float32(c.residual_scale)
    return change


def mix_tokens(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None, rows: Sequence[Rows]
) -> np.ndarray:
    """What the layer's mixer makes of `x` (rows, width)."""
    if isinstance(layer.spec.mixer, Recurrent):
        return mix_recurrently(ops, x, layer, rows)
    if not isinstance(layer.spec.mixer, Latent):
        mixed = mix_recurrently(ops, x, layer, rows) if layer.spec.recurrent else None
        found = attention(ops, x, layer, angles, rows)
        return found if mixed is None else found + mixed
    assert angles
    return latent_attention(ops, x, layer, angles, rows)
