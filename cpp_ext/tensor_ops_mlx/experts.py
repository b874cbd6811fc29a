"""A layer's experts on MLX's device: `airllm.backends.device.experts.Experts`."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from airllm.backends.device.experts import Activation, Mixture, Parted, Router
from tensor_ops_mlx import operations
from tensor_ops_mlx.device_array import Array
from tensor_ops_mlx.weights import Groups


class Experts:
    """The choice of the router, and products with the experts that it chooses."""

    def __init__(self, ops: Any):
        self._ops = ops

    def choose(self, logits: Array, bias: Array | None, router: Router) -> tuple[Array, Array]:
        """The chosen experts of rows of logits, and their weights, (rows, used) each, best first."""
        x = logits.value
        scores = mx.sigmoid(x) if router.scores == "sigmoid" else mx.softmax(x, axis=-1, precise=True)
        wanted = scores if bias is None else scores + bias.value
        if router.groups > 1:
            wanted = _in_best_groups(wanted, router)
        ids = mx.argsort(-wanted, axis=-1)[:, : router.used]
        weights = mx.take_along_axis(scores, ids, axis=-1)
        if router.normalize:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return Array(self._ops, ids), Array(self._ops, weights * router.scale)

    def linear(
        self,
        x: Array,
        ids: Array | None,
        weight: Any,
        bias: Array | None = None,
        gate: Activation | None = None,
    ) -> Array:
        """x times the matrices of the chosen experts: (slots, n). x has a row for each token, or for each
        slot; `weight` has the shape (experts, n, k) or is `Parted`, `bias` (experts, n). With a `gate`, both
        have 2 n rows, and the first half gates the second. Without ids, slots use all matrices by turns.
        """
        if ids is None:
            of_matrices = mx.arange(weight.shape[0])[None]
            chosen = mx.broadcast_to(of_matrices, (len(x) // weight.shape[0], weight.shape[0]))
        else:
            chosen = ids.value
        if isinstance(weight, Parted):
            found = self._multiply_parts(x, chosen, weight)
        else:
            found = self._multiply(x, chosen, weight)
        if bias is not None:
            found = found + bias.value[chosen.reshape(-1)]
        return Array(self._ops, _gated(found, gate) if gate else found)

    def _multiply(self, x: Array, chosen: mx.array, weight: Any) -> mx.array:
        """The products of all slots with matrices of one format."""
        rows, used = chosen.shape
        given = x.value.reshape(rows, -1, 1, weight.shape[-1])
        if isinstance(weight, Groups):
            codes, scales, offsets = weight.parts
            found = mx.gather_qmm(given, codes, scales, offsets, rhs_indices=chosen, **weight.options)
        else:
            found = _multiply(given, weight.value, chosen)
        return found.reshape(rows * used, -1)

    def _multiply_parts(self, x: Array, chosen: mx.array, weight: Parted) -> mx.array:
        """The products of each slot with a matrix of the format that its expert has."""
        found: Any = None
        for part, places in weight.parts:
            own = places.value[chosen]
            product = self._multiply(x, mx.maximum(own, 0), part)
            found = product if found is None else mx.where(own.reshape(-1, 1) >= 0, product, found)
        return found

    def mix(self, results: Array, weights: Array) -> Array:
        """The weighted sum (rows, n) of each token's results (slots, n)."""
        by_row = results.value.reshape(*weights.shape, -1)
        return Array(self._ops, (by_row * weights.value[..., None]).sum(axis=1))

    def mixture(self, x: Array, of_router: Array, given: Mixture, of_dense: Array | None = None) -> None:
        """None: MLX joins what it computes by itself."""


def _gated(both: mx.array, gate: Activation) -> mx.array:
    """The first half of each row gates the second."""
    x, up = mx.split(both, 2, axis=-1)
    if gate.name == "silu":
        return operations.swiglu(x, up)
    if gate.name == "clamped":
        x, up = mx.minimum(x, gate.limit), mx.clip(up, -gate.limit, gate.limit)
        return x * mx.sigmoid(gate.alpha * x) * (up + 1)
    return operations.geglu(x, up, gate.name)


def _multiply(x: mx.array, weight: mx.array, ids: mx.array) -> mx.array:
    """x (rows, used or 1, 1, k) times the matrices of floats with these ids. Halves are converted: of few
    slots only the chosen ones.
    """
    if weight.dtype != mx.float32 and ids.size < len(weight):
        return x @ weight[ids].astype(mx.float32).swapaxes(-1, -2)
    return mx.gather_mm(x, weight.astype(mx.float32).swapaxes(-1, -2), rhs_indices=ids)


def _in_best_groups(scores: mx.array, router: Router) -> mx.array:
    """-inf outside the best groups. A group is as good as its best experts together."""
    by_group = scores.reshape(len(scores), router.groups, -1)
    best = mx.sort(by_group, axis=-1)[..., -router.group_best :].sum(axis=-1)
    others = mx.argsort(-best, axis=-1)[:, router.groups_used :]
    hidden = mx.full((*others.shape, by_group.shape[-1]), -math.inf)
    return mx.put_along_axis(by_group, others[..., None], hidden, axis=1).reshape(scores.shape)
