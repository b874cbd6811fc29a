"""Adapters of a model on a device: their matrices go there once, and products there add them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from airllm.backends.device.experts import Activation, Experts, Mixture, Parted, Router
from airllm.engine.adapters.adapted_ops import AdaptedOps, Attached, Pairs
from airllm.engine.layers.experts import matrices_of
from airllm.engine.layers.feed_forward import activate
from airllm.memory.layers import Layer

OUTPUT = "output"
_OF_MIXTURE = ("experts.", "shared_expert.", "feed_forward.")  # what the launches of experts compute together
_Moved = dict[str, tuple[Any, Any]]


class PlacedAdapters:
    """The matrices of adapters on the device of a `DeviceOps`. `pairs`: see `join_adapters`; `experts`: how
    many a layer has.
    """

    def __init__(self, pairs: Pairs, on_device: Any, experts: int = 0):
        self._dense: dict[int, _Moved] = {}
        self._experts: dict[int, _Moved] = {}
        self._output: tuple[Any, Any] | None = None
        for name, (a, b) in _of_layers(pairs, experts).items():
            moved = on_device.to_device(a), on_device.to_device(b)
            if name == OUTPUT:
                self._output = moved
                continue
            _, layer, own = name.split(".", 2)
            of = self._experts if a.ndim == 3 else self._dense
            of.setdefault(int(layer), {})[own] = moved

    def ops_of(self, ops: Any, layer: Layer) -> Any:
        """The ops for a layer with weights on the device."""
        dense, experts = (of.get(layer.index, {}) for of in (self._dense, self._experts))
        if not dense and not experts:
            return ops
        adapted = {id(layer[name]): (layer[name], *pair) for name, pair in dense.items()}
        return _PlacedOps(ops, adapted, layer, [*dense, *experts], experts)

    def ops_of_output(self, ops: Any, output: Any) -> Any:
        """The ops for the output matrix on the device."""
        return AdaptedOps(ops, {id(output): (output, *self._output)}) if self._output else ops


def placed_bytes(pairs: Pairs, experts: int) -> int:
    """The bytes of adapters on a device."""
    return sum(a.nbytes + b.nbytes for a, b in _of_layers(pairs, experts).values())


def _of_layers(pairs: Pairs, experts: int) -> Pairs:
    """The pairs as a device has them: of a layer's experts, A (experts, rank, inputs) and B (experts,
    outputs, rank) of each kind, with zeros for experts that have no adapter, or one of less rank.
    """
    found, of_experts = dict[str, Any](), dict[str, dict[int, Any]]()
    for name, pair in pairs.items():
        if match := re.fullmatch(r"(layers\.\d+\.experts)\.(\d+)\.(.+)", name):
            of_experts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = pair
        else:
            found[name] = pair
    return found | {name: _stack(some, experts) for name, some in of_experts.items()}


def _stack(pairs: dict[int, Any], count: int) -> tuple[np.ndarray, np.ndarray]:
    """A and B of all experts, of which some have pairs."""
    a, b = next(iter(pairs.values()))
    rank = max(len(each) for each, _ in pairs.values())
    first = np.zeros((count, rank, a.shape[1]), np.float32)
    second = np.zeros((count, len(b), rank), np.float32)
    for number, (a, b) in pairs.items():
        first[number, : len(a)], second[number, :, : len(a)] = a, b
    return first, second


class _PlacedOps(AdaptedOps):
    """The ops for a layer on a device, whose matrices with these `names` have adapters."""

    def __init__(self, ops: Any, attached: Attached, layer: Layer, names: list[str], experts: _Moved):
        super().__init__(ops, attached)
        self._layer, self._experts = layer, experts
        self._apart = any(name.startswith(_OF_MIXTURE) for name in names)

    def extension(self, name: str) -> Any:
        """That of the backend; experts with their adapters."""
        found = self.backend.extension(name)
        if name != "device_experts" or not self._apart:
            return found
        return _AdaptedExperts(found, self.backend, self._layer, self._experts)


class _AdaptedExperts:
    """`Experts` whose products have adapters, each part in launches of its own."""

    def __init__(self, experts: Experts, ops: Any, layer: Layer, pairs: _Moved):
        self._given, self._ops, self._config = experts, ops, layer.config
        self._pairs = pairs
        self._parts = {
            _id_of(whole): f"experts.{part}"
            for part in ("gate", "up", "down", "gate_up")
            if (whole := matrices_of(layer, part)) is not None
        }

    def choose(self, logits: Any, bias: Any, router: Router) -> tuple[Any, Any]:
        """As `Experts.choose`."""
        return self._given.choose(logits, bias, router)

    def linear(self, x: Any, ids: Any, weight: Any, bias: Any = None, gate: Activation | None = None) -> Any:
        """As `Experts.linear`."""
        product = self._given.linear(x, ids, weight, bias)
        part = self._parts[_id_of(weight)]
        if gate is None:
            return self._adapt(product, x, ids, part)
        n = product.shape[1] // 2
        found = self._adapt(product[:, :n], x, ids, "experts.gate")
        return activate(self._ops, found, self._adapt(product[:, n:], x, ids, "experts.up"), self._config)

    def _adapt(self, product: Any, x: Any, ids: Any, part: str) -> Any:
        """The product (slots, n) of a part, plus what its adapters add."""
        if part not in self._pairs:
            return product
        a, b = self._pairs[part]
        return product + self._given.linear(self._given.linear(x, ids, a), ids, b)

    def mix(self, results: Any, weights: Any) -> Any:
        """As `Experts.mix`."""
        return self._given.mix(results, weights)

    def mixture(self, x: Any, of_router: Any, given: Mixture, of_dense: Any = None) -> None:
        """None: the launches of a mixture know no adapters."""


def _id_of(matrices: Any) -> int:
    """Tells the matrices of experts from others; those in several formats by the array of the first."""
    return id(matrices.parts[0][0] if isinstance(matrices, Parted) else matrices)
