"""A layer's experts on a device: the choice of the router, and products with the experts that it chooses.

A slot is the use of an expert by a token: each token has as many as it uses experts. The host never learns
which they are.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from airllm.backends.device.mixture import (
    COUNTABLE,
    MOST_EXPERTS,
    MOST_USED,
    Activation,
    Mixture,
    Router,
    mix,
)
from airllm.backends.device.tensor import Tensor


class Parted(NamedTuple):
    """Matrices of experts in several formats: for each format an array (experts of it, n, k), and the places
    (experts,) of all experts in that, int32, -1 for those of another format.
    """

    parts: tuple[tuple[Any, Any], ...]


class Experts(Protocol):
    """What a device does with experts. `x` and results are float32."""

    def choose(self, logits: Any, bias: Any, router: Router) -> tuple[Any, Any]:
        """The chosen experts of rows of logits, and their weights, (rows, used) each, best first."""

    def linear(self, x: Any, ids: Any, weight: Any, bias: Any = None, gate: Activation | None = None) -> Any:
        """x times the matrices of the chosen experts: (slots, n). x has a row for each token, or for each
        slot; `weight` has the shape (experts, n, k) or is `Parted`, `bias` (experts, n). With a `gate`, both
        have 2 n rows, and the first half gates the second. Without ids, slots use all matrices by turns.
        """

    def mix(self, results: Any, weights: Any) -> Any:
        """The weighted sum (rows, n) of each token's results (slots, n)."""

    def mixture(self, x: Any, of_router: Any, given: Mixture, of_dense: Any = None) -> Any:
        """The sum of each row's experts, the shared one too, in few launches; None if there are no kernels
        of it. `of_router` is what the router gets, and `of_dense` a dense feed-forward beside the experts, if
        there is one: then its result is a second one. Of latent experts it is their sum before the last
        product, and the result of the shared one, or None.
        """


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
        self._start("choose_experts", {"logits": logits, "bias": bias}, router.numbers, outs)
        return outs["ids"], outs["weights"]

    def linear(
        self,
        x: Tensor,
        ids: Tensor | None,
        weight: Any,
        bias: Tensor | None = None,
        gate: Activation | None = None,
    ) -> Tensor:
        """As `Experts.linear`. NotImplementedError for more values than the kernels count."""
        parts = weight.parts if isinstance(weight, Parted) else ((weight, None),)
        experts, rows, _ = parts[0][0].shape
        slots = len(x) if ids is None else ids.size
        numbers = gate.numbers if gate else {"activation": 0, "limit": 0.0, "alpha": 0.0}
        numbers |= {"shared": slots // max(len(x), 1), "matrices": experts}
        out = self._ops.empty((slots, rows // (2 if gate else 1)))
        for part, places in parts:
            if prod(part.shape) >= COUNTABLE:
                found = f"experts: a weight has {prod(part.shape)} values"
                raise NotImplementedError(f"{found}, expected less than 2^32")
            arrays = {"x": x, "ids": ids, "places": places, "weight": part, "bias": bias}
            self._start("linear_experts", arrays, numbers, {"out": out})
        return out

    def mix(self, results: Tensor, weights: Tensor) -> Tensor:
        """As `Experts.mix`."""
        out = self._ops.empty((len(weights), results.shape[1]))
        self._start("mix_experts", {"results": results, "weights": weights}, {}, {"out": out})
        return out

    def mixture(self, x: Tensor, of_router: Tensor, given: Mixture, of_dense: Tensor | None = None) -> Any:
        """As `Experts.mixture`."""
        if given.why_not(len(x)) or not self._ops.place.fuses("mixture", given.weights):
            return None
        mixed, shared = mix(self._ops, x, of_router, given, of_dense)
        return (mixed, shared) if given.apart else mixed

    def _start(self, name: str, arrays: dict[str, Any], numbers: dict[str, Any], outs: Any) -> None:
        given = {
            n: self._ops.ready(a) if isinstance(a, Tensor) else a for n, a in arrays.items() if a is not None
        }
        if next(iter(outs.values())).size:
            self._ops.start(name, given, numbers, outs)


__all__ = ["MOST_EXPERTS", "Activation", "DeviceExperts", "Experts", "Mixture", "Parted", "Router"]
