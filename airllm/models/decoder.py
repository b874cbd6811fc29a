"""A decoder layer: the mathematics of every model this library runs, written with its own ops.

Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3, Phi-3, Mixtral and Qwen3-MoE are one function here. What they do
not share is in the configuration (windows, soft caps, activation, scales) or in what weights there are:
biases, norms of q and k, norms after each half, a router of experts.

The rows of `x` are tokens of one or several sequences, one after the other. Only attention knows them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airllm.models.cache import Cache
from airllm.models.layers import Layer


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `stop` of x are the next tokens of one sequence."""

    start: int
    stop: int
    cache: Cache

    def of(self, array: np.ndarray) -> np.ndarray:
        return array[self.start : self.stop]


@dataclass(frozen=True)
class Angles:
    """What turns the queries and keys of all rows: cosines and sines (rows, 1, dim / 2)."""

    cos: np.ndarray
    sin: np.ndarray
    interleaved: bool


def decoder_layer(ops: Any, x: np.ndarray, layer: Layer, angles: Angles, rows: Sequence[Rows]) -> np.ndarray:
    """`x` (rows, width), float32, after this layer; the rows' keys and values are put into their caches.

    `ops` has the tensor operations as methods: a `KernelBackend`.
    """
    c = layer.config
    normed = ops.rms_norm(x, layer["attention.norm"], c.norm_eps)
    change = attention(ops, normed, layer, angles, rows)
    layer.add_up(change)
    if c.post_norms:
        change = ops.rms_norm(change, layer["attention.post_norm"], c.norm_eps)
    x, normed = ops.add_rms_norm(x, change, layer["feed_forward.norm"], c.norm_eps)
    change = (
        experts(ops, normed, layer)
        if layer.experts
        else feed_forward(ops, normed, c.activation, layer.weights)
    )
    layer.add_up(change)
    if c.post_norms:
        change = ops.rms_norm(change, layer["feed_forward.post_norm"], c.norm_eps)
    return np.add(x, change, out=change)  # fresh memory would cost more than the sum


def attention(ops: Any, x: np.ndarray, layer: Layer, angles: Angles, rows: Sequence[Rows]) -> np.ndarray:
    """Each token attends to those before it in its sequence."""
    c = layer.config
    q, k, v = (
        ops.linear(x, layer[f"attention.{each}"], layer.get(f"attention.{each}_bias")).reshape(
            len(x), -1, c.head_dim
        )
        for each in "qkv"
    )
    if c.qk_norm:
        q = ops.rms_norm(q, layer["attention.q_norm"], c.norm_eps)
        k = ops.rms_norm(k, layer["attention.k_norm"], c.norm_eps)
    seen = q  # in whose memory, once they are turned, what they have seen is put
    q, k = (ops.apply_rope_into(each, angles.cos, angles.sin, angles.interleaved, None) for each in (q, k))
    for part in rows:
        part.cache.append(layer.index, part.of(k), part.of(v), ops.extension("assign"))
        _attend(ops, part.of(q).swapaxes(0, 1), layer, part.cache, part.of(seen).swapaxes(0, 1))
    return ops.linear(seen.reshape(len(x), -1), layer["attention.output"], layer.get("attention.output_bias"))


def _attend(ops: Any, q: np.ndarray, layer: Layer, cache: Cache, out: np.ndarray) -> None:
    """Queries (heads, tokens, head_dim) of the last tokens, to the keys and values in the cache."""
    c, length = layer.config, cache.length + q.shape[1]
    options = {"scale": c.attention_scale, "softcap": c.attention_softcap, "window": c.windows[layer.index]}
    if attend := ops.extension("cached_attention"):
        attend(q, cache.data[layer.index], length, out, **options)
    else:
        ops.attention(q, *cache.read(layer.index, length), causal=True, **options, out=out)


def unpacks_cache(ops: Any, dtype: str) -> bool:
    """Whether keys and values kept in this dtype become float32, all of a layer's, before they are used."""
    return dtype == "q8_0" and ops.extension("cached_attention") is None


def feed_forward(
    ops: Any, x: np.ndarray, activation: str, weights: Any, prefix: str = "feed_forward."
) -> np.ndarray:
    """down(act(gate(x)) * up(x))"""
    gate, up = (ops.linear(x, weights[prefix + each]) for each in ("gate", "up"))
    both = ops.swiglu(gate, up) if activation == "silu" else ops.geglu(gate, up, _GELU[activation])
    return ops.linear(both, weights[prefix + "down"])


_GELU = {"gelu_tanh": "tanh", "gelu": "none"}


def experts(ops: Any, x: np.ndarray, layer: Layer) -> np.ndarray:
    """For each token the experts that the router likes best, weighted; no other is read."""
    c = layer.config
    assert layer.experts
    liking = ops.softmax(ops.linear(x, layer["experts.router"]))
    best = np.argsort(-liking, axis=-1, kind="stable")[:, : c.experts_used]
    share = np.take_along_axis(liking, best, axis=-1)
    if c.normalize_experts:
        share /= share.sum(axis=-1, keepdims=True)
    total = np.zeros_like(x)
    used = np.unique(best).tolist()
    layer.experts.expect(layer.index, used)
    for number in used:
        tokens, place = np.nonzero(best == number)
        result = feed_forward(ops, x[tokens], c.activation, layer.experts[number], prefix="")
        total[tokens] += share[tokens, place][:, None] * result
    return total
