"""One decoder layer, written with the library's own ops. It defines the mathematics of every model.

One function serves all architectures (`airllm/architectures/`). The configuration says what differs: windows,
scales, soft caps, the activation, which norms exist, layers without rotary positions.

The rows of `x` are the tokens of one or several sequences, concatenated. Only attention separates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from airllm.architectures.model_config import Latent, ModelConfig
from airllm.architectures.recurrent import Recurrent
from airllm.backends.device.experts import Activation, Experts, Mixture, Router
from airllm.engine.layers.activations import sigmoid
from airllm.engine.layers.latent_attention import latent_attention
from airllm.engine.layers.recurrent import mix_recurrently
from airllm.engine.layers.rows import Angles, Rows, query_temperatures
from airllm.engine.row_kernels import ops_of_experts
from airllm.files.weight_file import Stored
from airllm.memory.kv_cache import Cache
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
    weighted = ops.geglu(ops.linear(x, layer["input.gate"]), inputs, _GELU[c.activation])
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
        found = attention(ops, x, layer, angles, rows)
        return found + mix_recurrently(ops, x, layer, rows) if layer.spec.recurrent else found
    assert angles
    return latent_attention(ops, x, layer, angles, rows)


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
        attended *= sigmoid(gate)
    result = ops.linear(
        attended.reshape(len(x), -1), layer["attention.output"], layer.get("attention.output_bias")
    )
    return _scaled(result, layer.config.attended_scale)


def _scaled(x: np.ndarray, scale: float) -> np.ndarray:
    return x if scale == 1 else x * np.float32(scale)


def _queries(
    ops: Any, x: np.ndarray, layer: Layer, angles: Angles | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The queries of `x`; an array for what they attend to: in host memory the one before their rotation, if
    it fits (on a device that may never be computed); and what gates that, if the model does.
    """
    a, gate = layer.spec.attention, None
    q = _multiply(ops, x, layer, "q").reshape(len(x), a.heads, -1)
    if layer.config.output_gate:
        q, gate = np.ascontiguousarray(q[..., : a.key_dim]), q[..., a.key_dim :]
    placed = _place(ops, q, layer, "q", angles)
    if placed is not q and a.value_dim == a.key_dim and isinstance(q, np.ndarray):
        return placed, q, gate
    return placed, np.empty_like(q, shape=(len(x), a.heads, a.value_dim)), gate


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


def experts_or_dense(ops: Any, x: np.ndarray, layer: Layer) -> np.ndarray:
    """The layer's experts, or its dense feed-forward if it has none."""
    return mix_experts(ops, x, layer) if layer.experts else feed_forward(ops, x, layer)


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
        gate = _scaled(multiply(x, "gate"), c.gate_scale)
        activated = _activate(ops, gate, multiply(x, "up"), c)
    else:
        activated = _activate_alone(ops, multiply(x, "up"), c)
    return _scaled(multiply(activated, "down"), c.down_scale)


def _activate_alone(ops: Any, x: np.ndarray, c: ModelConfig) -> np.ndarray:
    if c.activation == "relu2":
        return np.square(np.maximum(x, 0))
    return ops.silu(x) if c.activation == "silu" else ops.gelu(x, _GELU[c.activation])


def _activate(ops: Any, gate: np.ndarray, up: np.ndarray, c: ModelConfig) -> np.ndarray:
    if c.activation == "silu":
        return ops.swiglu(gate, up)
    if c.activation == "swiglu_clamped":
        gate, up = np.minimum(gate, c.swiglu_limit), np.clip(up, -c.swiglu_limit, c.swiglu_limit)
        return ops.swiglu(c.swiglu_alpha * gate, (up + 1) / c.swiglu_alpha)
    return ops.geglu(gate, up, _GELU[c.activation])


_GELU = {"gelu_tanh": "tanh", "gelu": "none"}


def dense_and_experts(ops: Any, x: np.ndarray, normed: np.ndarray, layer: Layer) -> np.ndarray:
    """The sum of a dense feed-forward of `normed` and of experts, which have norms of `x` of their own."""
    c = layer.config
    of_experts, of_router = (
        ops.rms_norm(x, layer[f"experts.{name}"], c.norm_eps) for name in ("norm", "router_norm")
    )
    device = ops.extension("device_experts")
    both = device and device.mixture(of_experts, of_router, _mixture_of(layer), normed)
    if both:
        mixed, dense = both
    else:
        dense, mixed = feed_forward(ops, normed, layer), mix_experts(ops, of_experts, layer, of_router)
    dense = ops.rms_norm(dense, layer["feed_forward.dense_norm"], c.norm_eps)
    return np.add(dense, ops.rms_norm(mixed, layer["experts.post_norm"], c.norm_eps), out=dense)


def mix_experts(ops: Any, x: np.ndarray, layer: Layer, of_router: np.ndarray | None = None) -> np.ndarray:
    """The weighted sum of the experts that the router chooses for each token. Other experts are not read.
    `of_router`: the router's input, if it is not `x`.
    """
    c = layer.config
    assert layer.experts
    if on_device := ops.extension("device_experts"):
        return _mix_on_device(ops, on_device, x, layer, x if of_router is None else of_router)
    routed = _route(ops, x if of_router is None else of_router, layer)
    total = _shared_expert(ops, x, layer) if c.shared_expert else np.zeros_like(x)
    if not c.expert_latent:
        return _add_experts(ops, total, x, layer, *routed)
    latent = ops.linear(x, layer["experts.latent_in"])
    found = _add_experts(ops, np.zeros_like(latent), latent, layer, *routed)
    return np.add(total, ops.linear(found, layer["experts.latent_out"]), out=total)


def _add_experts(
    ops: Any, total: np.ndarray, x: np.ndarray, layer: Layer, chosen: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """`total` plus the results of the `chosen` experts of each row (rows, experts_used), by their weights."""
    c, experts = layer.config, ops_of_experts(ops)
    assert layer.experts
    used = np.unique(chosen).tolist()
    layer.experts.expect(layer.index, used)
    for number in used:
        tokens, place = np.nonzero(chosen == number)
        share, some = weights[tokens, place][:, None], x[tokens]
        result = mlp(experts, some * share if c.scales_input else some, c, layer.experts[number])
        total[tokens] += result if c.scales_input else share * result
    return total


def _mix_on_device(ops: Any, device: Experts, x: Any, layer: Layer, of_router: Any) -> Any:
    """`mix_experts` on a device, which has a layer's experts in one array for each of their matrices."""
    c = layer.config
    given = _mixture_of(layer)
    plain = not c.dense_and_experts and c.gate_scale == c.down_scale == 1
    if plain and (mixed := device.mixture(x, of_router, given)) is not None:
        return mixed
    logits = ops.linear(of_router, layer["experts.router"], layer.get("experts.router_bias"))
    ids, weights = device.choose(logits, layer.get("experts.selection_bias"), given.router)
    if c.dense_and_experts:
        scales: Any = layer["experts.scales"]
        weights *= ops.embedding(ids.reshape(-1), scales.reshape(-1, 1)).reshape(weights.shape)

    def multiply(x: Any, part: str, gate: Activation | None = None) -> Any:
        return device.linear(x, ids, layer[f"experts.{part}"], layer.get(f"experts.{part}_bias"), gate)

    used = _scale_slots(x, weights) if c.scales_input else x
    if "experts.gate_up" in layer.weights:
        activated = multiply(used, "gate_up", _gate_of(c))
    else:
        activated = _activate(ops, multiply(used, "gate"), multiply(used, "up"), c)
    results = multiply(activated, "down")
    total = _sum_slots(results, weights) if c.scales_input else device.mix(results, weights)
    if c.shared_expert:
        total += _shared_expert(ops, x, layer)
    return total


def _mixture_of(layer: Layer) -> Mixture:
    """A layer's experts, as devices know them."""
    c = layer.config
    groups = c.expert_groups, c.expert_groups_used
    router = Router(c.experts, c.experts_used, c.expert_scores, *groups, c.normalize_experts, c.expert_scale)
    return Mixture(router, _gate_of(c), c.scales_input, layer.weights, bool(c.dense_and_experts))


def _scale_slots(x: Any, weights: Any) -> Any:
    """Each row of `x` once for each of its experts (rows * used, width), times the expert's weight."""
    rows, used = weights.shape
    slots = np.empty_like(x, shape=(rows, used, x.shape[1]))
    slots[:] = x.reshape(rows, 1, -1)
    slots *= weights.reshape(rows, used, 1)
    return slots.reshape(rows * used, -1)


def _sum_slots(results: Any, weights: Any) -> Any:
    """The sums (rows, width) of the results (rows * used, width) of each row's experts."""
    rows, used = weights.shape
    slots = results.reshape(rows, used, -1).swapaxes(0, 1)
    return sum((slots[i] for i in range(1, used)), slots[0])


def _gate_of(c: ModelConfig) -> Activation:
    """What `_activate` computes, by the names of devices."""
    if c.activation == "swiglu_clamped":
        return Activation("clamped", c.swiglu_limit, c.swiglu_alpha)
    return Activation("silu" if c.activation == "silu" else _GELU[c.activation])


def _route(ops: Any, x: np.ndarray, layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the experts that the router chooses (rows, experts_used), and their weights."""
    c = layer.config
    logits = ops.linear(x, layer["experts.router"], layer.get("experts.router_bias"))
    scores = sigmoid(logits) if c.expert_scores == "sigmoid" else ops.softmax(logits)
    preferences = logits if c.scales_input else _preferences(scores, layer)  # sigmoids may be equal
    chosen = np.argsort(-preferences, axis=-1, kind="stable")[:, : c.experts_used]
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if c.normalize_experts:
        weights /= weights.sum(axis=-1, keepdims=True)
    if c.expert_scale != 1:
        weights *= np.float32(c.expert_scale)
    if c.dense_and_experts:
        weights *= layer["experts.scales"][chosen]
    return chosen, weights


def _preferences(scores: np.ndarray, layer: Layer) -> np.ndarray:
    """Scores (rows, experts) by which experts are chosen: with a bias, and -inf outside the best groups. A
    group is as good as the sum of its `expert_group_best` best experts.
    """
    c = layer.config
    if c.selection_bias:
        scores = scores + layer["experts.selection_bias"]
    if c.expert_groups == 1:
        return scores
    by_group = scores.reshape(len(scores), c.expert_groups, -1)
    best = np.sort(by_group, axis=-1)[..., -c.expert_group_best :].sum(axis=-1)
    others = np.argsort(-best, axis=-1, kind="stable")[:, c.expert_groups_used :]
    found = by_group.copy()
    np.put_along_axis(found, others[..., None], -np.inf, axis=1)
    return found.reshape(scores.shape)


def _shared_expert(ops: Any, x: np.ndarray, layer: Layer) -> np.ndarray:
    """The expert that every token uses, weighted by the sigmoid of its own gate if it has one."""
    found = feed_forward(ops, x, layer, "shared_expert")
    if layer.config.shared_gate:
        found *= sigmoid(ops.linear(x, layer["shared_expert.router"]))
    return found
