"""Mixers with a recurrent state, written with the library's own ops: the definition of what native layers
compute of them. `architectures/recurrent.py` has their sizes.

A mixer gets the state before a pass and writes that after it, both arrays of the cache. What it computes of a
token depends on nothing but the tokens before it, however a text is cut into passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm.architectures.recurrent import Recurrent, ShortConv
from airllm.engine.rows import Rows
from airllm.memory.layers import Layer

Mixer = Callable[[Any, np.ndarray, Layer, Sequence[Rows]], np.ndarray]


def mix_recurrently(ops: Any, x: np.ndarray, layer: Layer, rows: Sequence[Rows]) -> np.ndarray:
    """What the layer's mixer makes of `x` (rows, width). The rows' states go on."""
    mixer = layer.spec.mixer
    assert isinstance(mixer, Recurrent)
    return _MIXERS[type(mixer)](ops, x, layer, rows)


def short_conv(ops: Any, x: np.ndarray, layer: Layer, rows: Sequence[Rows]) -> np.ndarray:
    """A gated short convolution: of each channel's input times its first gate, then times its second gate."""
    before, after, inner = np.split(ops.linear(x, layer["short_conv.in"]), 3, axis=1)
    inner = before * inner
    found = np.empty_like(inner)
    for part in rows:
        (state,), (next_state,) = part.cache.states(layer.index)
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


_MIXERS: Mapping[type[Recurrent], Mixer] = {ShortConv: short_conv}
