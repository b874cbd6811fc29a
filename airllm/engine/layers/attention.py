"""Multi-head attention of a decoder layer, written with the library's own ops.

The rows of `x` are the tokens of one or several sequences, concatenated. Each token attends to itself and the
earlier tokens of its sequence, whose keys and values are in a cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from airllm.engine.layers.activations import scaled, sigmoid
from airllm.engine.layers.rows import Angles, Rows, query_temperatures
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer


def attention(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None, rows: Sequence[Rows]
) -> np.ndarray:
    """Multi-head attention of `x` (rows, width): each token attends to itself and the earlier tokens of its
    sequence. Appends the rows' keys and values to their caches.
    """
    a = layer.spec.attention
    q, attended, gate = _queries(ops, x, layer, angles)
    if a.temperature:
        q = q * query_temperatures(a.temperature, rows)  # on a device, part of another launch
    own = a.source == layer.index
    if own:
        k, v = _keys_and_values(ops, x, layer, angles)
    for part in rows:
        if own:
            ways = ops.extension("assign"), ops.extension("append")
            part.cache.append(layer.index, part.of(k), part.of(v), *ways)
        _attend(ops, part.of(q).swapaxes(0, 1), layer, part.cache, part.of(attended).swapaxes(0, 1))
    if gate is not None:
        attended = _open_gate(ops, attended, gate)
    result = ops.linear(
        attended.reshape(len(x), -1), layer["attention.output"], layer.get("attention.output_bias")
    )
    return scaled(result, layer.config.attended_scale)


def _queries(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The queries of `x`; an array for what they attend to: in host memory the one before their rotation, if
    it fits (on a device that may never be computed); and what gates that, if the model does.
    """
    a, gate = layer.spec.attention, None
    q = _multiply(ops, x, layer, "q").reshape(len(x), a.heads, -1)
    if layer.config.output_gate:
        q, gate = q[:, :, : a.key_dim].copy(), q[:, :, a.key_dim :]
    placed = _place(ops, q, layer, "q", angles)
    if placed is not q and a.value_dim == a.key_dim and isinstance(q, np.ndarray):
        return placed, q, gate
    return placed, np.empty_like(q, shape=(len(x), a.heads, a.value_dim)), gate


def _open_gate(ops: Any, attended: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """`attended` times the sigmoids of `gate`."""
    if device := ops.extension("device_recurrence"):
        return device.gate(attended, gate)
    attended *= sigmoid(gate)
    return attended


def _keys_and_values(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values (rows, kv_heads, head_dim) of `x`."""
    c, a = layer.config, layer.spec.attention
    keys = _multiply(ops, x, layer, "k")
    values = keys if a.keys_as_values else _multiply(ops, x, layer, "v")
    values = values.reshape(len(x), -1, a.value_dim)
    if c.value_norm:
        values = ops.rms_norm(values, layer["attention.v_norm"], c.norm_eps)
    keys = keys.reshape(len(x), a.kv_heads, a.key_dim)
    return _place(ops, keys, layer, "k", angles), values


def _multiply(ops: Any, x: np.ndarray, layer: Layer, part: str) -> np.ndarray:
    """The product of `x` with the matrix of "q", "k" or "v"."""
    return ops.linear(x, layer[f"attention.{part}"], layer.get(f"attention.{part}_bias"))


def _place(ops: Any, found: np.ndarray, layer: Layer, part: str, angles: Angles | None) -> np.ndarray:
    """Queries or keys (rows, heads, head_dim), normalized and rotated as the model does. `part` is "q" or
    "k".
    """
    if layer.config.late_qk_norm:
        return _normalize_part(ops, _rotate(ops, found, angles), layer, part)
    return _rotate(ops, _normalize_part(ops, found, layer, part), angles)


def _normalize_part(ops: Any, found: np.ndarray, layer: Layer, part: str) -> np.ndarray:
    c, shape = layer.config, found.shape
    if (weight := layer.get(f"attention.{part}_norm")) is None:
        return found
    flat = found.reshape(len(found), -1) if c.qk_norm == "row" else found
    return ops.rms_norm(flat, weight, c.norm_eps).reshape(shape)


def _rotate(ops: Any, x: np.ndarray, angles: Angles | None) -> np.ndarray:
    return ops.apply_rope_into(x, angles.cos, angles.sin, angles.interleaved, None) if angles else x


def _attend(ops: Any, q: np.ndarray, layer: Layer, cache: Cache, out: np.ndarray) -> None:
    """Attend from `q` (heads, tokens, head_dim), the last tokens, to the cache. `out` has the shape of q."""
    window, start = layer.spec.attention.window, cache.length
    stop = start + q.shape[1]
    if not (layer.config.chunked and window):
        return _attend_to(ops, q, layer, cache, out, stop, window)
    for first, last, seen in _chunk_parts(start, stop, window):
        some = slice(first - start, last - start)
        _attend_to(ops, q[:, some], layer, cache, out[:, some], last, seen)


def _chunk_parts(start: int, stop: int, wide: int) -> Iterator[tuple[int, int, int | None]]:
    """Tokens [start, stop) in parts: the first, the end, and the window that shows them their chunk. Those of
    the first chunk see all tokens before them. A later one needs a window of its own.
    """
    if start < wide:
        yield start, min(stop, wide), None
    for at in range(max(start, wide), stop):
        yield at, at + 1, at % wide + 1


def _attend_to(
    ops: Any,
    q: np.ndarray,
    layer: Layer,
    cache: Cache,
    out: np.ndarray,
    length: int,
    window: int | None,
) -> None:
    """`_attend` from the last of `length` tokens."""
    c, a = layer.config, layer.spec.attention
    options: dict[str, Any] = {"scale": c.attention_scale, "softcap": c.attention_softcap, "window": window}
    if c.sinks:
        options["sinks"] = layer["attention.sinks"]
    attend, kept = ops.extension("cached_attention"), cache.layer(a.source).both
    if attend and kept is not None:
        dropped = cache.dropped_of(a.source)
        attend(q, kept, length - dropped, out, origin=dropped, **options)
    else:
        ops.attention(q, *cache.read(a.source, length), causal=True, **options, out=out)


def unpacks_cache(ops: Any, dtype: str) -> bool:
    """Whether a layer's whole cache of this dtype is converted to float32 before attention reads it."""
    return dtype == "q8_0" and ops.extension("cached_attention") is None
