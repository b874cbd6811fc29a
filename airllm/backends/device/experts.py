"""A layer's experts on a device: the choice of the router, and products with the experts that it chooses.

A slot is the use of an expert by a token: each token has as many as it uses experts. The host never learns
which they are.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from airllm.backends.device.tensor import Tensor

MOST_EXPERTS, MOST_USED = 1024, 64  # of the kernels
_COUNTABLE = 2**32


class Router(NamedTuple):
    """How experts are chosen: `airllm.engine.layers.decoder` defines it for NumPy arrays. `scores` is
    "softmax" or "sigmoid".
    """

    experts: int
    used: int
    scores: str
    groups: int
    groups_used: int
    normalize: bool
    scale: float


class Activation(NamedTuple):
    """What a gate does: `name` is "silu", "tanh" or "none", as of `swiglu` and of `geglu`'s `approximate`, or
    "clamped", which has a limit and alpha: `airllm.engine.layers.decoder` defines it.
    """

    name: str
    limit: float = 0.0
    alpha: float = 0.0


_NUMBERS = {"silu": 1, "tanh": 2, "none": 3, "clamped": 4}  # in kernels


class Experts(Protocol):
    """What a device does with experts. `x` and results are float32."""

    def choose(self, logits: Any, bias: Any, router: Router) -> tuple[Any, Any]:
        """The chosen experts of rows of logits, and their weights, (rows, used) each, best first."""

    def linear(self, x: Any, ids: Any, weight: Any, bias: Any = None, gate: Activation | None = None) -> Any:
        """x times the matrices of the chosen experts: (slots, n). x has a row for each token, or for each
        slot; `weight` has the shape (experts, n, k), `bias` (experts, n). With a `gate`, both have 2 n rows,
        and the first half gates the second.
        """

    def mix(self, results: Any, weights: Any) -> Any:
        """The weighted sum (rows, n) of each token's results (slots, n)."""


class DeviceExperts:
    """`Experts` by the kernels of a `Place`."""

    def __init__(self, ops: Any):
        self._ops = ops

    def choose(self, logits: Tensor, bias: Tensor | None, router: Router) -> tuple[Tensor, Tensor]:
        """As `Experts.choose`. NotImplementedError for more experts than the kernels take."""
        if router.experts > MOST_EXPERTS or router.used > MOST_USED:
            found = f"experts: a token uses {router.used} of {router.experts}"
            raise NotImplementedError(f"{found}, expected at most {MOST_USED} of {MOST_EXPERTS} on a device")
        shape = (len(logits), router.used)
        outs = {"ids": self._ops.empty(shape, np.int32), "weights": self._ops.empty(shape)}
        numbers = {
            "used": router.used, "groups": router.groups, "groups_used": router.groups_used,
            "sigmoid": int(router.scores == "sigmoid"), "normalize": int(router.normalize),
            "scale": router.scale,
        }  # fmt: skip
        self._start("choose_experts", {"logits": logits, "bias": bias}, numbers, outs)
        return outs["ids"], outs["weights"]

    def linear(
        self, x: Tensor, ids: Tensor, weight: Any, bias: Tensor | None = None, gate: Activation | None = None
    ) -> Tensor:
        """As `Experts.linear`. NotImplementedError for more values than the kernels count."""
        if prod(weight.shape) >= _COUNTABLE:
            raise NotImplementedError(
                f"experts: a weight has {prod(weight.shape)} values, expected less than 2^32"
            )
        out = self._ops.empty((ids.size, weight.shape[1] // (2 if gate else 1)))
        arrays = {"x": x, "ids": ids, "weight": weight, "bias": bias}
        numbers = {
            "shared": ids.size // max(len(x), 1), "activation": _NUMBERS[gate.name] if gate else 0,
            "limit": gate.limit if gate else 0.0, "alpha": gate.alpha if gate else 0.0,
        }  # fmt: skip
        self._start("linear_experts", arrays, numbers, {"out": out})
        return out

    def mix(self, results: Tensor, weights: Tensor) -> Tensor:
        """As `Experts.mix`."""
        out = self._ops.empty((len(weights), results.shape[1]))
        self._start("mix_experts", {"results": results, "weights": weights}, {}, {"out": out})
        return out

    def _start(self, name: str, arrays: dict[str, Any], numbers: dict[str, Any], outs: Any) -> None:
        given = {
            n: self._ops.ready(a) if isinstance(a, Tensor) else a for n, a in arrays.items() if a is not None
        }
        if next(iter(outs.values())).size:
            self._ops.start(name, given, numbers, outs)
