"""Mixers with a recurrent state on a device, which has kernels for what NumPy computes step by step in
`recurrent.py`: that is their definition. The host waits for none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm.architectures.recurrent import DeltaRule, Mamba2, Recurrent, ShortConv
from airllm.backends.device.recurrent import Convolution, DeltaHeads, Recurrence, StateHeads, States
from airllm.engine.layers.rows import Rows
from airllm.memory.layers import Layer

Mixer = Callable[[Any, Recurrence, Any, Layer, Sequence[Rows]], Any]


def mix_on_device(ops: Any, device: Recurrence, x: Any, layer: Layer, rows: Sequence[Rows]) -> Any:
    """What the layer's mixer makes of `x` (rows, width). The rows' states go on."""
    mixer = layer.spec.recurrent
    assert mixer
    return _MIXERS[type(mixer)](ops, device, x, layer, rows)


def _short_conv(ops: Any, device: Recurrence, x: Any, layer: Layer, rows: Sequence[Rows]) -> Any:
    inner, taps = ops.linear(x, layer["short_conv.in"]), layer["short_conv.filter"]

    def mix(part: Rows, states: States) -> Any:
        return device.convolve(Convolution(part.of(inner), taps, None, states), gated=True)

    return ops.linear(_by_sequence(layer, rows, mix), layer["short_conv.output"])


def _delta_rule(ops: Any, device: Recurrence, x: Any, layer: Layer, rows: Sequence[Rows]) -> Any:
    a = layer.spec.mixer
    assert isinstance(a, DeltaRule)
    heads = DeltaHeads(a.key_heads, a.value_heads, a.key_dim, a.value_dim, a.tiled)
    inputs, gate = _delta_inputs(ops, x, layer, a)
    rates, steps = ops.linear(x, layer["delta.rate"]), ops.linear(x, layer["delta.step"])
    decay, bias = layer["delta.decay"], layer["delta.step_bias"]

    def mix(part: Rows, inner: States, matrices: States) -> Any:
        joined = heads if a.joined else None
        given = Convolution(part.of(inputs), layer["delta.filter"], None, inner, joined)
        return device.scan_delta(given, part.of(rates), part.of(steps), decay, bias, matrices, heads)

    found, scale = _by_sequence(layer, rows, mix), layer["delta.head_scale"]
    found = device.gate_and_norm(found, gate, scale, a.value_heads, layer.config.norm_eps, norm_first=True)
    return ops.linear(found, layer["delta.output"])


def _delta_inputs(ops: Any, x: Any, layer: Layer, a: DeltaRule) -> tuple[Any, Any]:
    """Rows with queries, keys and values of `x`, and gates (rows, values); those that lie in these rows are
    (rows, key heads, values of one).
    """
    if not a.joined:
        return ops.linear(x, layer["delta.qkv"]), ops.linear(x, layer["delta.gate"])
    inputs = ops.linear(x, layer["delta.qkvz"])
    of_key_head = inputs.reshape(len(x), a.key_heads, -1)
    return inputs, of_key_head[:, :, of_key_head.shape[2] - a.values // a.key_heads :]


def _mamba2(ops: Any, device: Recurrence, x: Any, layer: Layer, rows: Sequence[Rows]) -> Any:
    a = layer.spec.recurrent
    assert isinstance(a, Mamba2)
    inner = ops.linear(x, layer["mamba.in"])
    if a.multipliers:
        inner *= layer[MULTIPLIERS]
    end = a.values + a.channels
    gate, inputs, steps = inner[:, : a.values], inner[:, a.values : end], inner[:, end:]
    heads = StateHeads(a.heads, a.groups, a.head_dim, a.state_dim)
    decay, step_bias, skip = (layer[f"mamba.{name}"] for name in ("decay", "step_bias", "skip"))

    def mix(part: Rows, inner: States, matrices: States) -> Any:
        bias = layer.get("mamba.filter_bias")
        given = Convolution(part.of(inputs), layer["mamba.filter"], bias, inner)
        return device.scan_states(given, part.of(steps), decay, step_bias, skip, matrices, heads)

    found, scale = _by_sequence(layer, rows, mix), layer.get("mamba.scale")
    found = device.gate_and_norm(found, gate, scale, a.groups, layer.config.norm_eps, a.norm_first)
    result = ops.linear(found, layer["mamba.output"])
    return result * np.float32(a.multipliers[-1]) if a.multipliers else result


def constants(layer: Layer) -> dict[str, np.ndarray]:
    """Vectors that the layer's mixer needs on a device besides its weights, by name."""
    mixer = layer.spec.recurrent
    return {MULTIPLIERS: mixer.input_multipliers} if isinstance(mixer, Mamba2) and mixer.multipliers else {}


def _by_sequence(layer: Layer, rows: Sequence[Rows], mix: Callable[..., Any]) -> Any:
    """What `mix` makes of the rows of each sequence and of its states."""
    found = []
    for part in rows:
        before, after = part.cache.recurrent.of(layer.index)
        found.append(mix(part, *zip(before, after, strict=True)))
    return np.concatenate(found)


MULTIPLIERS = "mamba.multipliers"
_MIXERS: Mapping[type[Recurrent], Mixer] = {ShortConv: _short_conv, DeltaRule: _delta_rule, Mamba2: _mamba2}
