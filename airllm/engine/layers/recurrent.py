"""Mixers with a recurrent state, written with the library's own ops: the definition of what native layers and
devices compute of them. `architectures/recurrent.py` has their sizes.

A mixer gets the state before a pass and writes that after it, both arrays of the cache. What it computes of a
token depends on nothing but the tokens before it, however a text is cut into passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm.architectures.recurrent import DeltaRule, Mamba2, Recurrent, ShortConv
from airllm.engine.layers.activations import sigmoid
from airllm.engine.layers.delta_rule import scan
from airllm.engine.layers.recurrent_on_device import mix_on_device
from airllm.engine.layers.rows import Rows
from airllm.engine.layers.state_space import scan as scan_states
from airllm.engine.row_kernels import is_for_few_rows
from airllm.memory.layers import Layer

Mixer = Callable[[Any, np.ndarray, Layer, Sequence[Rows]], np.ndarray]


def mix_recurrently(ops: Any, x: np.ndarray, layer: Layer, rows: Sequence[Rows]) -> np.ndarray:
    """What the layer's mixer makes of `x` (rows, width). The rows' states go on."""
    mixer = layer.spec.recurrent
    assert mixer
    if device := ops.extension("device_recurrence"):
        return mix_on_device(ops, device, x, layer, rows)
    return _MIXERS[type(mixer)](ops, x, layer, rows)


def short_conv(ops: Any, x: np.ndarray, layer: Layer, rows: Sequence[Rows]) -> np.ndarray:
    """A gated short convolution: of each channel's input times its first gate, then times its second gate."""
    before, after, inner = np.split(ops.linear(x, layer["short_conv.in"]), 3, axis=1)
    inner = before * inner
    found = np.empty_like(inner)
    for part in rows:
        (state,), (next_state,) = part.cache.recurrent.of(layer.index)
        convolve(part.of(inner), layer["short_conv.filter"], state, next_state, part.of(found))
    return ops.linear(np.multiply(found, after, out=found), layer["short_conv.output"])


def convolve(x: np.ndarray, taps: Any, state: np.ndarray, next_state: np.ndarray, out: np.ndarray) -> None:
    """The causal convolution of each channel of `x` (tokens, channels) with its row of `taps` (channels,
    count), the last of which is for the token itself. `state` (count - 1, channels) has the inputs before
    them; `next_state` gets those before the next token.
    """
    inputs = np.concatenate([state, x])
    np.multiply(inputs[: len(x)], taps[:, 0], out=out)
    for tap in range(1, taps.shape[1]):
        out += inputs[tap : tap + len(x)] * taps[:, tap]
    np.copyto(next_state, inputs[len(x) :])


def delta_rule(ops: Any, x: np.ndarray, layer: Layer, rows: Sequence[Rows]) -> np.ndarray:
    """The gated delta rule: of queries, keys and values that went through a convolution; normalized by head,
    then gated.
    """
    a = layer.spec.mixer
    assert isinstance(a, DeltaRule)
    inputs, gate = _delta_inputs(ops, x, layer, a)
    rate = sigmoid(ops.linear(x, layer["delta.rate"]))
    steps = ops.linear(x, layer["delta.step"]) + layer["delta.step_bias"]
    log_decay = layer["delta.decay"] * np.logaddexp(np.float32(0), steps)  # of softplus
    found = np.empty((len(x), a.value_heads, a.value_dim), np.float32)
    for part in rows:
        (before, state), (next_before, next_state) = part.cache.recurrent.of(layer.index)
        mixed = np.empty_like(part.of(inputs))
        convolve(part.of(inputs), layer["delta.filter"], before, next_before, mixed)
        q, k, v = _heads(a, ops.silu(mixed))
        start = None if is_for_few_rows(ops) else part.cache.length
        arrays = q, k, v, part.of(log_decay), part.of(rate)
        part.of(found)[:] = scan(*arrays, state, next_state, start)
    found = ops.rms_norm(found, layer["delta.head_scale"], layer.config.norm_eps)
    return ops.linear(ops.swiglu(gate, found.reshape(len(x), -1)), layer["delta.output"])


def _delta_inputs(ops: Any, x: np.ndarray, layer: Layer, a: DeltaRule) -> tuple[np.ndarray, np.ndarray]:
    """Queries, keys and values of `x` side by side (rows, channels), and gates (rows, values)."""
    if not a.joined:
        return ops.linear(x, layer["delta.qkv"]), ops.linear(x, layer["delta.gate"])
    of_key_head = ops.linear(x, layer["delta.qkvz"]).reshape(len(x), a.key_heads, -1)
    wide = a.values // a.key_heads
    stops = np.cumsum([a.key_dim, a.key_dim, wide])
    q, k, v, gate = (each.reshape(len(x), -1) for each in np.split(of_key_head, stops, axis=-1))
    return np.concatenate([q, k, v], axis=1), gate


def _heads(a: DeltaRule, mixed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries and keys, of length 1 and queries then scaled, and values of each value head."""
    keys = a.key_heads * a.key_dim
    both = mixed[:, : 2 * keys].reshape(len(mixed), 2, a.key_heads, a.key_dim)
    both = both / np.sqrt((both * both).sum(axis=-1, keepdims=True) + np.float32(_TINY))
    of_head = np.arange(a.value_heads)
    of_head = of_head % a.key_heads if a.tiled else of_head // (a.value_heads // a.key_heads)
    q, k = (both[:, i, of_head] for i in range(2))
    values = mixed[:, 2 * keys :].reshape(len(mixed), a.value_heads, a.value_dim)
    return q * np.float32(a.key_dim**-0.5), k, values


def mamba2(ops: Any, x: np.ndarray, layer: Layer, rows: Sequence[Rows]) -> np.ndarray:
    """Mamba-2's mixer: values and the two vectors go through a convolution, the values through the state
    space and past it; then they are gated and normalized.
    """
    a = layer.spec.recurrent
    assert isinstance(a, Mamba2)
    inner = ops.linear(x, layer["mamba.in"])
    if a.multipliers:
        inner *= a.input_multipliers
    gate, inputs, steps = np.split(inner, np.cumsum([a.values, a.channels]), axis=1)
    steps = np.logaddexp(np.float32(0), steps + layer["mamba.step_bias"])  # softplus
    log_decay = layer["mamba.decay"] * steps
    found = np.empty((len(x), a.heads, a.head_dim), np.float32)
    for part in rows:
        (before, state), (next_before, next_state) = part.cache.recurrent.of(layer.index)
        mixed = np.empty_like(part.of(inputs))
        convolve(part.of(inputs), layer["mamba.filter"], before, next_before, mixed)
        if a.filter_bias:
            mixed += layer["mamba.filter_bias"]
        v, writes, reads = _states_of(a, ops.silu(mixed))
        start = None if is_for_few_rows(ops) else part.cache.length
        arrays = writes, reads, v * part.of(steps)[..., None], part.of(log_decay)
        part.of(found)[:] = scan_states(*arrays, state, next_state, start) + layer["mamba.skip"][:, None] * v
    found = _gate_and_norm(ops, a, found.reshape(len(x), -1), gate, layer)
    result = ops.linear(found, layer["mamba.output"])
    return result * np.float32(a.multipliers[-1]) if a.multipliers else result


def _states_of(a: Mamba2, mixed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values of each head, and the input and output vectors of each group."""
    v, writes, reads = np.split(mixed, np.cumsum([a.values, a.groups * a.state_dim]), axis=1)
    by_group = len(mixed), a.groups, a.state_dim
    return v.reshape(len(mixed), a.heads, a.head_dim), writes.reshape(by_group), reads.reshape(by_group)


def _gate_and_norm(ops: Any, a: Mamba2, found: np.ndarray, gate: np.ndarray, layer: Layer) -> np.ndarray:
    if not a.norm:
        return ops.swiglu(gate, found)
    if not a.norm_first:
        found = ops.swiglu(gate, found)
    by_group = found.reshape(len(found), a.groups, -1)
    ones = np.ones(by_group.shape[-1], np.float32)
    found = ops.rms_norm(by_group, ones, layer.config.norm_eps).reshape(found.shape) * layer["mamba.scale"]
    return ops.swiglu(gate, found) if a.norm_first else found


_TINY = 1e-6  # added to squared lengths
_MIXERS: Mapping[type[Recurrent], Mixer] = {ShortConv: short_conv, DeltaRule: delta_rule, Mamba2: mamba2}
