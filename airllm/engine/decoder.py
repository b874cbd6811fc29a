"""One decoder layer, written with the library's own ops. It defines the mathematics of every model.

One function serves all architectures (`airllm/architectures/`). The configuration says what differs: windows,
scales, soft caps, the activation, which norms exist, layers without rotary positions.

The rows of `x` are the tokens of one or several sequences, concatenated. Only attention separates them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airllm.architectures.model_config import ModelConfig, QueryTemperature
from airllm.engine.row_kernels import ops_of_experts
from airllm.files.weight_file import Stored
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `stop` of x are the next tokens of one sequence. `cache` holds its keys and values."""

    start: int
    stop: int
    cache: Cache

    def of(self, array: np.ndarray) -> np.ndarray:
        return array[self.start : self.stop]


@dataclass(frozen=True)
class Angles:
    """Rotary angles of all rows: cosines and sines (rows, 1, dim / 2), float32."""

    cos: np.ndarray
    sin: np.ndarray
    interleaved: bool


def decoder_layer(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None, rows: Sequence[Rows]
) -> np.ndarray:
    """Run one layer on `x` (rows, width), float32, and return its output, of the same shape and dtype.

    The rows' keys and values are appended to their caches. `ops` has the tensor operations as methods: a
    `KernelBackend`. `angles` is None if the layer has no rotary positions.
    """
    c = layer.config
    normed = ops.rms_norm(x, layer["attention.norm"], c.norm_eps) if c.pre_norms else x
    change = _finish_half(ops, attention(ops, normed, layer, angles, rows), layer, "attention")
    if c.pre_norms:
        x, normed = ops.add_rms_norm(x, change, layer["feed_forward.norm"], c.norm_eps)
    else:
        x = normed = np.add(x, change, out=change)
    change = mix_experts(ops, normed, layer) if layer.experts else feed_forward(ops, normed, layer)
    change = _finish_half(ops, change, layer, "feed_forward")
    return np.add(x, change, out=change)  # allocating the result would cost more than the sum


def _finish_half(ops: Any, change: np.ndarray, layer: Layer, half: str) -> np.ndarray:
    """What attention or feed-forward adds to the hidden state: its result all-reduced, normalized, scaled."""
    c = layer.config
    layer.all_reduce(change)
    if c.post_norms:
        change = ops.rms_norm(change, layer[f"{half}.post_norm"], c.norm_eps)
    if c.residual_scale != 1:
        change *= np.float32(c.residual_scale)
    return change


def attention(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None, rows: Sequence[Rows]
) -> np.ndarray:
    """Multi-head attention of `x` (rows, width): each token attends to itself and the earlier tokens of its
    sequence. Appends the rows' keys and values to their caches.
    """
    c = layer.config
    q, k, v = (
        ops.linear(x, layer[f"attention.{each}"], layer.get(f"attention.{each}_bias")) for each in "qkv"
    )
    if c.qk_norm == "row":
        q, k = _norm_queries_and_keys(ops, q, k, layer)
    q, k, v = (each.reshape(len(x), -1, c.head_dim) for each in (q, k, v))
    if c.qk_norm == "head":
        q, k = _norm_queries_and_keys(ops, q, k, layer)
    attended = q  # reuse q's buffer for the output: apply_rope_into writes the rotated queries elsewhere
    if angles:
        q, k = (ops.apply_rope_into(e, angles.cos, angles.sin, angles.interleaved, None) for e in (q, k))
    else:
        attended = np.empty_like(q)
    if c.query_temperature:
        q *= _query_temperatures(c.query_temperature, rows)
    for part in rows:
        own = ops.extension("assign"), ops.extension("append")
        part.cache.append(layer.index, part.of(k), part.of(v), *own)
        _attend(ops, part.of(q).swapaxes(0, 1), layer, part.cache, part.of(attended).swapaxes(0, 1))
    return ops.linear(
        attended.reshape(len(x), -1), layer["attention.output"], layer.get("attention.output_bias")
    )


def _norm_queries_and_keys(
    ops: Any, q: np.ndarray, k: np.ndarray, layer: Layer
) -> tuple[np.ndarray, np.ndarray]:
    eps = layer.config.norm_eps
    return (
        ops.rms_norm(q, layer["attention.q_norm"], eps),
        ops.rms_norm(k, layer["attention.k_norm"], eps),
    )


def _query_temperatures(of: QueryTemperature, rows: Sequence[Rows]) -> np.ndarray:
    """The factor (rows, 1, 1), float32, on each row's queries. It depends on the position in the sequence."""
    at = np.concatenate([part.cache.length + np.arange(part.stop - part.start) for part in rows])
    return (1 + of.scale * np.log1p(at // of.length)).astype(np.float32)[:, None, None]


def _attend(ops: Any, q: np.ndarray, layer: Layer, cache: Cache, out: np.ndarray) -> None:
    """Attend from `q` (heads, tokens, head_dim), the last tokens, to the cache. `out` has the shape of q."""
    c, length = layer.config, cache.length + q.shape[1]
    options: dict[str, Any] = {
        "scale": c.attention_scale,
        "softcap": c.attention_softcap,
        "window": c.window(layer.index),
    }
    if c.sinks:
        options["sinks"] = layer["attention.sinks"]
    if attend := ops.extension("cached_attention"):
        dropped = cache.dropped_of(layer.index)
        attend(q, cache.layer(layer.index), length - dropped, out, origin=dropped, **options)
    else:
        ops.attention(q, *cache.read(layer.index, length), causal=True, **options, out=out)


def unpacks_cache(ops: Any, dtype: str) -> bool:
    """Whether a layer's whole cache of this dtype is converted to float32 before attention reads it."""
    return dtype == "q8_0" and ops.extension("cached_attention") is None


def feed_forward(ops: Any, x: np.ndarray, layer: Layer, part: str = "feed_forward") -> np.ndarray:
    """The layer's feed-forward, or its shared expert if `part` is "shared_expert"."""
    names = ("gate", "up", "down")
    return gated_mlp(ops, x, layer.config, {name: layer[f"{part}.{name}"] for name in names})


def gated_mlp(ops: Any, x: np.ndarray, c: ModelConfig, weights: Mapping[str, Stored]) -> np.ndarray:
    """down(act(gate(x)) * up(x)), each matrix with its bias if it has one."""
    gate, up = (ops.linear(x, weights[name], weights.get(f"{name}_bias")) for name in ("gate", "up"))
    return ops.linear(_activate(ops, gate, up, c), weights["down"], weights.get("down_bias"))


def _activate(ops: Any, gate: np.ndarray, up: np.ndarray, c: ModelConfig) -> np.ndarray:
    if c.activation == "silu":
        return ops.swiglu(gate, up)
    if c.activation == "swiglu_clamped":
        gate, up = np.minimum(gate, c.swiglu_limit), np.clip(up, -c.swiglu_limit, c.swiglu_limit)
        return ops.swiglu(c.swiglu_alpha * gate, (up + 1) / c.swiglu_alpha)
    return ops.geglu(gate, up, _GELU[c.activation])


_GELU = {"gelu_tanh": "tanh", "gelu": "none"}


def mix_experts(ops: Any, x: np.ndarray, layer: Layer) -> np.ndarray:
    """The weighted sum of the experts that the router chooses for each token. Other experts are not read."""
    c = layer.config
    assert layer.experts
    chosen, weights = _route(ops, x, layer)
    total = _shared_expert(ops, x, layer) if c.shared_expert else np.zeros_like(x)
    experts = ops_of_experts(ops)
    used = np.unique(chosen).tolist()
    layer.experts.expect(layer.index, used)
    for number in used:
        tokens, place = np.nonzero(chosen == number)
        result = gated_mlp(experts, x[tokens], c, layer.experts[number])
        total[tokens] += weights[tokens, place][:, None] * result
    return total


def _route(ops: Any, x: np.ndarray, layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the experts that the router chooses (rows, experts_used), and their weights."""
    c = layer.config
    probabilities = ops.softmax(ops.linear(x, layer["experts.router"], layer.get("experts.router_bias")))
    chosen = np.argsort(-probabilities, axis=-1, kind="stable")[:, : c.experts_used]
    weights = np.take_along_axis(probabilities, chosen, axis=-1)
    if c.normalize_experts:
        weights /= weights.sum(axis=-1, keepdims=True)
    return chosen, weights


def _shared_expert(ops: Any, x: np.ndarray, layer: Layer) -> np.ndarray:
    """The expert that every token uses, weighted by the sigmoid of its own gate."""
    gate = ops.linear(x, layer["shared_expert.router"])
    weight = np.tanh(gate / 2) / 2 + 0.5  # the sigmoid, without overflow
    return weight * feed_forward(ops, x, layer, "shared_expert")
