"""The experts of a decoder layer: the router's choice, and the weighted sum of those that it chooses."""

from __future__ import annotations

from typing import Any

import numpy as np

from airllm.architectures.model_config import ModelConfig
from airllm.backends.device.experts import Activation, Experts, Mixture, Parted, Router
from airllm.engine.layers.activations import sigmoid
from airllm.engine.layers.feed_forward import activate, activate_alone, device_activation, feed_forward, mlp
from airllm.engine.row_kernels import ops_of_experts
from airllm.memory.layers import Layer


def experts_or_dense(ops: Any, x: np.ndarray, layer: Layer) -> np.ndarray:
    """The layer's experts, or its dense feed-forward if it has none."""
    return mix_experts(ops, x, layer) if layer.experts else feed_forward(ops, x, layer)


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
    plain = not c.dense_and_experts and c.gate_scale == c.down_scale == 1
    if plain and (mixed := device.mixture(x, of_router, _mixture_of(layer))) is not None:
        return _of_latents(ops, layer, *mixed) if c.expert_latent else mixed
    logits = ops.linear(of_router, layer["experts.router"], layer.get("experts.router_bias"))
    ids, weights = device.choose(logits, layer.get("experts.selection_bias"), _router_of(c))
    if c.dense_and_experts:
        scales: Any = layer["experts.scales"]
        weights *= ops.embedding(ids.reshape(-1), scales.reshape(-1, 1)).reshape(weights.shape)

    def multiply(x: Any, part: str, gate: Activation | None = None) -> Any:
        matrices = matrices_of(layer, part)
        assert matrices is not None
        return device.linear(x, ids, matrices, _bias_of(layer, part), gate)

    inner = ops.linear(x, layer["experts.latent_in"]) if c.expert_latent else x
    used = _scale_slots(inner, weights) if c.scales_input else inner
    if matrices_of(layer, "gate_up") is not None:
        activated = multiply(used, "gate_up", device_activation(c))
    elif not c.gated:
        activated = activate_alone(ops, multiply(used, "up"), c)
    else:
        activated = activate(ops, multiply(used, "gate"), multiply(used, "up"), c)
    results = multiply(activated, "down")
    total = _sum_slots(results, weights) if c.scales_input else device.mix(results, weights)
    if c.expert_latent:
        total = ops.linear(total, layer["experts.latent_out"])
    if c.shared_expert:
        total += _shared_expert(ops, x, layer)
    return total


def _of_latents(ops: Any, layer: Layer, latent: Any, shared: Any) -> Any:
    """What latent experts make, and the shared one."""
    total = ops.linear(latent, layer["experts.latent_out"])
    if shared is not None:
        total += shared
    return total


def matrices_of(layer: Layer, part: str) -> Any:
    """The matrices of all experts on a device: one array, those of each format, or None."""
    if (whole := layer.get(f"experts.{part}")) is not None:
        return whole
    parts = list[tuple[Any, Any]]()
    while (each := layer.get(name := f"experts.{part}.{len(parts)}")) is not None:
        parts.append((each, layer[f"{name}.places"]))
    return Parted(tuple(parts)) if parts else None


def _bias_of(layer: Layer, part: str) -> Any:
    """The biases of a matrix of all experts; those of gate and up may be one array."""
    whole: Any = layer.get("experts.gate_up_bias")
    if whole is None or part not in ("gate", "up"):
        return layer.get(f"experts.{part}_bias")
    n = whole.shape[1] // 2
    return whole[:, :n] if part == "gate" else whole[:, n:]


def _mixture_of(layer: Layer) -> Mixture:
    """A layer's experts, as devices know them."""
    c = layer.config
    dense = bool(c.dense_and_experts)
    return Mixture(_router_of(c), device_activation(c), c.scales_input, layer.weights, dense)


def _router_of(c: ModelConfig) -> Router:
    """The choice of experts, as devices know it."""
    return Router(
        *(c.experts, c.experts_used, c.expert_scores, c.expert_groups, c.expert_groups_used),
        *(c.normalize_experts, c.expert_scale, c.expert_group_best),
    )


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
