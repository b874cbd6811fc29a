"""Multi-head latent attention (DeepSeek-V2, 2024), written with the library's own ops: the definition of what
native layers compute of it.

A token keeps a latent and a rotated key that all heads share. Each head's keys and values are products of the
latent. They are never made: the matrix of keys multiplies the query instead, and that of values what the
query attended to. So all heads attend to the same short rows, and values are the first part of those rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from airllm.architectures.layer_spec import Latent
from airllm.engine.layers.rows import Angles, Rows, query_temperatures
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer

NORM_EPS = 1e-6  # of the norms of latents, whatever that of the other norms is


def latent_attention(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles, rows: Sequence[Rows]
) -> np.ndarray:
    """Attention of `x` (rows, width): each token attends to itself and the earlier tokens of its sequence.
    Appends what the rows keep to their caches.
    """
    a = _latent(layer)
    q, kept = _queries(ops, x, layer, angles), _kept(ops, x, layer, angles)
    if a.temperature:
        q = q * query_temperatures(a.temperature, rows)  # on a device, part of another launch
    for part in rows:
        ways = ops.extension("assign"), ops.extension("append")
        part.cache.append(layer.index, part.of(kept), None, *ways)
    attended = _attend_to_all(ops, q, layer, rows)
    values = _multiply_heads(ops, attended, layer["attention.v_b"], a.value_dim)
    return ops.linear(values.reshape(len(x), -1), layer["attention.output"])


def _latent(layer: Layer) -> Latent:
    assert isinstance(layer.spec.mixer, Latent)
    return layer.spec.mixer


def _queries(ops: Any, x: np.ndarray, layer: Layer, angles: Angles) -> np.ndarray:
    """Queries (rows, heads, row) for what tokens keep."""
    a = _latent(layer)
    if a.q_rank:
        latents = ops.rms_norm(ops.linear(x, layer["attention.q_a"]), layer["attention.q_a_norm"], NORM_EPS)
        q = ops.linear(latents, layer["attention.q_b"])
    else:
        q = ops.linear(x, layer["attention.q"])
    q = q.reshape(len(x), a.heads, a.query_dim)
    for_latents = _multiply_heads(ops, q[..., : a.plain_dim], layer["attention.k_b"], a.kv_rank)
    return _join(ops, for_latents, _rotate(ops, q[..., a.plain_dim :], angles))


def _kept(ops: Any, x: np.ndarray, layer: Layer, angles: Angles) -> np.ndarray:
    """What the tokens keep (rows, 1, row): the normalized latent, and the rotated key."""
    a = _latent(layer)
    found = ops.linear(x, layer["attention.kv_a"]).reshape(len(x), 1, a.row)
    latents = _contiguous(found[..., : a.kv_rank])
    normed = ops.rms_norm(latents, layer["attention.kv_a_norm"], NORM_EPS)
    return _join(ops, normed, _rotate(ops, found[..., a.kv_rank :], angles))


def _rotate(ops: Any, x: np.ndarray, angles: Angles) -> np.ndarray:
    return ops.apply_rope_into(_contiguous(x), angles.cos, angles.sin, angles.interleaved, None)


def _contiguous(x: Any) -> Any:
    """A C-contiguous array. Ops on a device take views."""
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x


def _join(ops: Any, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Two parts of heads (rows, heads, n) beside each other."""
    if join := ops.extension("join"):
        return join(first, second)
    n = first.shape[-1]
    found = np.empty_like(first, shape=(*first.shape[:-1], n + second.shape[-1]))
    found[..., :n], found[..., n:] = first, second
    return found


def _multiply_heads(ops: Any, x: np.ndarray, weights: Any, n: int) -> np.ndarray:
    """x[:, h] @ weights[h].T for each head h: (rows, heads, n). `x` (rows, heads, k), `weights` (heads, n,
    k).
    """
    if multiply := ops.extension("linear_heads"):
        return multiply(x, weights)
    out = np.empty_like(x, shape=(*x.shape[:2], n))
    for head in range(x.shape[1]):
        out[:, head] = ops.linear(np.ascontiguousarray(x[:, head]), weights[head])
    return out


def _attend_to_all(ops: Any, q: np.ndarray, layer: Layer, rows: Sequence[Rows]) -> np.ndarray:
    """What queries (rows, heads, row) attend to: (rows, heads, kv_rank)."""
    a, scale = _latent(layer), layer.config.attention_scale
    if len(rows) == 1 and (attend := ops.extension("attend_to_cache")):
        cache, length = rows[0].cache, rows[0].cache.length + len(q)
        given = q.swapaxes(0, 1), cache.layer(layer.index).arrays[0], length, a.kv_rank
        return attend(*given, scale=scale).swapaxes(0, 1)
    attended = np.empty_like(q, shape=(len(q), a.heads, a.kv_rank))
    for part in rows:
        _attend(ops, part.of(q).swapaxes(0, 1), layer, part.cache, part.of(attended).swapaxes(0, 1))
    return attended


def _attend(ops: Any, q: np.ndarray, layer: Layer, cache: Cache, out: np.ndarray) -> None:
    """Attend from `q` (heads, tokens, row), the last tokens, to the cache. `out` (heads, tokens, kv_rank)."""
    a, scale, length = _latent(layer), layer.config.attention_scale, cache.length + q.shape[1]
    if attend := ops.extension("cached_attention"):
        attend(q, cache.layer(layer.index).arrays[0], length, out, scale=scale, value_dim=a.kv_rank)
    else:
        ops.attention(q, *cache.read(layer.index, length), causal=True, scale=scale, out=out)
