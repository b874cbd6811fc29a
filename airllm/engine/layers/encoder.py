"""The layers of encoders: models whose tokens attend to all tokens of their text, before and after them.

The rows of a pass are the tokens of several texts, the shortest first, without padding: only attention
separates them, and texts of one length attend together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from airllm.engine.layers.decoder import normalize
from airllm.engine.layers.feed_forward import feed_forward
from airllm.engine.layers.rows import Angles
from airllm.memory.layers import Layer

BLOCK = 128  # queries that attend together in a layer with a window
Masks: TypeAlias = Callable[[range, range, int], Any]


@dataclass(frozen=True)
class Alike:
    """Rows `start` to `stop` of x are texts of `length` tokens each."""

    start: int
    stop: int
    length: int

    def heads_of(self, array: np.ndarray) -> np.ndarray:
        """A view (texts, heads, length, dim) of an array (rows, heads, dim)."""
        part = array[self.start : self.stop]
        return part.reshape(-1, self.length, *array.shape[1:]).swapaxes(1, 2)


def band(queries: range, keys: range, most: int) -> np.ndarray:
    """A mask (queries, keys), bool, by which each query sees the keys at most so many positions away."""
    return np.abs(np.subtract.outer(queries, keys)) <= most


def encoder_layer(
    ops: Any,
    x: np.ndarray,
    layer: Layer,
    angles: Angles | None,
    rows: Sequence[Alike],
    masks: Masks = band,
) -> np.ndarray:
    """Run one layer on `x` (rows, width), float32; returns its output. `angles` is None if the layer has no
    rotary positions. `masks` makes those of `band`, where the arrays are.
    """
    c = layer.config
    normed = normalize(ops, x, layer["attention.norm"], c) if c.norm_before_attention(layer.index) else x
    x = _join(ops, x, _attention(ops, normed, layer, angles, rows, masks), layer, "attention")
    normed = normalize(ops, x, layer["feed_forward.norm"], c) if c.pre_norms else x
    return _join(ops, x, feed_forward(ops, normed, layer), layer, "feed_forward")


def _join(ops: Any, x: np.ndarray, change: np.ndarray, layer: Layer, half: str) -> np.ndarray:
    """The hidden state after one half of a layer: x plus its result, and the norm of one of them."""
    c = layer.config
    if not c.post_norms:
        return np.add(x, change, out=change)
    norm = layer[f"{half}.post_norm"]
    if c.encoding and c.encoding.sum_norms:
        return normalize(ops, np.add(x, change, out=change), norm, c)
    change = normalize(ops, change, norm, c)
    return np.add(x, change, out=change)


def _attention(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None, rows: Sequence[Alike], masks: Masks
) -> np.ndarray:
    """Attention of `x` (rows, width) among the tokens of each text."""
    q, k = (_rotate(ops, _heads(ops, x, layer, part), angles) for part in "qk")
    v = _heads(ops, x, layer, "v")
    out = np.empty_like(x, shape=(len(x), q.shape[1], v.shape[2]))
    for part in rows:
        own_q, own_k, own_v, own_out = (part.heads_of(each) for each in (q, k, v, out))
        _attend(ops, own_q, own_k, own_v, own_out, layer, masks)
    return ops.linear(out.reshape(len(x), -1), layer["attention.output"], layer.get("attention.output_bias"))


def _heads(ops: Any, x: np.ndarray, layer: Layer, part: str) -> np.ndarray:
    """The queries, keys or values (rows, heads, dim) of `x`, normalized by head if the model does so."""
    a = layer.spec.attention
    found = ops.linear(x, layer[f"attention.{part}"], layer.get(f"attention.{part}_bias"))
    found = found.reshape(len(x), -1, a.value_dim if part == "v" else a.key_dim)
    norm = layer.get(f"attention.{part}_norm")
    return found if norm is None else ops.rms_norm(found, norm, layer.config.norm_eps)


def _rotate(ops: Any, x: np.ndarray, angles: Angles | None) -> np.ndarray:
    return ops.apply_rope_into(x, angles.cos, angles.sin, angles.interleaved, None) if angles else x


def _attend(
    ops: Any,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    layer: Layer,
    masks: Masks = band,
) -> None:
    """Attend from `q` to `k` and `v` (texts, heads, tokens, dim) of the same texts, into `out`."""
    scale, window, tokens = layer.config.attention_scale, layer.spec.attention.window, q.shape[2]
    if window is None or tokens <= window // 2 + 1:
        ops.attention(q, k, v, scale=scale, out=out)
        return
    for start in range(0, tokens, BLOCK):
        stop = min(start + BLOCK, tokens)
        seen = slice(max(start - window // 2, 0), min(stop + window // 2, tokens))
        mask = masks(range(start, stop), range(seen.start, seen.stop), window // 2)
        some = (q[:, :, start:stop], k[:, :, seen], v[:, :, seen], mask)
        ops.attention(*some, scale=scale, out=out[:, :, start:stop])


def alike(lengths: Sequence[int]) -> Iterator[Alike]:
    """Runs of texts of the same length."""
    start = 0
    for length, run in groupby(lengths):
        stop = start + length * len(list(run))
        yield Alike(start, stop, length)
        start = stop
