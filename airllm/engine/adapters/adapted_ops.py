"""The ops of a backend, whose products have adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm.engine.adapters.adapter import Adapter, Pair
from airllm.engine.row_kernels import ops_of_experts
from airllm.files.weight_file import Stored
from airllm.memory.layers import Layer

Pairs = Mapping[str, Pair]  # A and B of the decoder's matrices, by their names
Attached = Mapping[int, tuple[Stored, np.ndarray, np.ndarray]]  # id of a weight -> it, A and B


class AdaptedOps:
    """`linear` adds B (A x) to the product of a weight that has an adapter."""

    def __init__(self, ops: Any, attached: Attached):
        self.backend, self._attached = ops, attached

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def __repr__(self) -> str:
        return f"{self.backend!r} with adapters"

    @property
    def of_experts(self) -> AdaptedOps:
        """The ops for the experts of a layer."""
        return AdaptedOps(ops_of_experts(self.backend), self._attached)

    def linear(self, x: np.ndarray, weight: Stored, bias: np.ndarray | None = None) -> np.ndarray:
        """`tensor_ops.linear` of x (rows, k)."""
        return self.adapt(self.backend.linear(x, weight, bias), x, weight)

    def adapt(self, product: np.ndarray, x: np.ndarray, weight: Stored) -> np.ndarray:
        """The product of x with a weight, plus what an adapter of the weight adds to it."""
        if (attached := self._attached.get(id(weight))) is None:
            return product
        _, a, b = attached
        change = self.backend.linear(self.backend.linear(x, a), b)
        # on a device, a product may be part of a larger array, which must not be written
        return np.add(product, change, out=product if isinstance(product, np.ndarray) else None)


def join_adapters(adapters: Iterable[tuple[Adapter, float]]) -> dict[str, Pair]:
    """The matrices of adapters, each times its scale. Several of one weight become one of more rank."""
    pairs: dict[str, list[Pair]] = {}
    for adapter, scale in adapters:
        for name, (a, b) in adapter.pairs.items():
            pairs.setdefault(name, []).append((a, b * np.float32(scale)))
    return {
        name: (
            np.concatenate([a for a, _ in some]),
            np.ascontiguousarray(np.concatenate([b for _, b in some], axis=1)),
        )
        for name, some in pairs.items()
    }


def attach(pairs: Pairs, layers: Sequence[Layer], output: Stored) -> Attached:
    """The adapters of the weights of these layers, and of the output."""
    if not pairs:
        return {}
    weights = {**dict(_weights(layers)), "output": output}
    return {id(weights[name]): (weights[name], a, b) for name, (a, b) in pairs.items()}


def _weights(layers: Sequence[Layer]) -> Iterable[tuple[str, Stored]]:
    for layer in layers:
        for name, weight in layer.weights.items():
            yield f"layers.{layer.index}.{name}", weight
        if layer.experts:
            for number, expert in layer.experts.looked_up():
                for part, weight in expert.items():
                    yield f"layers.{layer.index}.experts.{number}.{part}", weight
