"""A layer's experts for a few rows, in three launches.

The router's product has the norm before it. The product with gate and up has the choice, which each
work-group makes for itself. The product with down has the weighted sum. A shared expert is one more expert of
the last two, and its gate one more column of the router. Experts that get and make other vectors than their
layer's, latent ones, have two more products, before and after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from airllm.backends.device.residual import NormedSum, in_one_piece
from airllm.backends.device.stacks import data_of, memories_beside, whole_of
from airllm.backends.device.tensor import Tensor
from airllm.formats import Quantized

MOST_EXPERTS, MOST_USED, MOST_GROUPS = 1024, 64, 64  # of the kernels: choice.inc
COUNTABLE = 2**32
_MOST_ROWS = 8  # those of more rows are products with many rows of a matrix
_ACTIVATIONS = {"silu": 1, "tanh": 2, "none": 3, "clamped": 4, "relu2": 5}  # their numbers in kernels


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
    group_best: int = 2

    @property
    def numbers(self) -> dict[str, Any]:
        """What kernels are told."""
        return {
            "used": self.used, "groups": self.groups, "groups_used": self.groups_used,
            "group_best": self.group_best,
            "sigmoid": int(self.scores == "sigmoid"), "normalize": int(self.normalize), "scale": self.scale,
        }  # fmt: skip


class Activation(NamedTuple):
    """What a gate does: `name` is "silu", "tanh" or "none", as of `swiglu` and of `geglu`'s `approximate`,
    "relu2", or "clamped", which has a limit and alpha: `airllm.engine.layers.feed_forward` defines them.
    """

    name: str
    limit: float = 0.0
    alpha: float = 0.0

    @property
    def numbers(self) -> dict[str, Any]:
        """What kernels are told."""
        return {"activation": _ACTIVATIONS[self.name], "limit": self.limit, "alpha": self.alpha}


class Mixture(NamedTuple):
    """A layer's experts. `weights` are the layer's, by name. `scales_input`: the weights of the chosen
    experts multiply what these get. `dense`: what the shared expert would be is a dense feed-forward beside
    the experts, which has another input, and a result of its own. So has a shared expert beside latent ones.
    """

    router: Router
    gate: Activation
    scales_input: bool
    weights: Mapping[str, Any]
    dense: bool = False

    @property
    def of_shared(self) -> str:
        """How the names of the shared expert's weights begin."""
        return "feed_forward" if self.dense else "shared_expert"

    @property
    def gated(self) -> bool:
        """Whether experts have gates; else their activation is of `up`."""
        return "experts.gate_up" in self.weights or "experts.gate" in self.weights

    @property
    def latent(self) -> int:
        """How many values experts get and make; 0 if as many as their layer."""
        into = self.weights.get("experts.latent_in")
        return 0 if into is None else data_of(into).shape[0]

    @property
    def apart(self) -> bool:
        """Whether the shared expert, or what is in its place, has a result of its own."""
        return self.dense or self.latent > 0

    @property
    def shared(self) -> dict[str, Any]:
        """The shared expert's matrices by the names of kernels, if the layer has one: gate and up as one, or
        beside each other as two of two formats, or up alone; and down.
        """
        w, of = self.weights, self.of_shared
        if f"{of}.down" not in w:
            return {}
        if not self.gated:
            return {"shared": w[f"{of}.up"], "down": w[f"{of}.down"]}
        gate, up, down = (w[f"{of}.{name}"] for name in ("gate", "up", "down"))
        if data_of(gate).memory is data_of(up).memory:
            return {"shared": whole_of(gate), "down": down}
        return {"shared": gate, "shared_up": up, "down": down}

    @property
    def shared_values(self) -> int:
        """How many values the shared expert's activation has."""
        shared, alone = self.shared, not self.gated
        return shared["shared"].shape[0] // (1 if alone or "shared_up" in shared else 2) if shared else 0

    @property
    def gate_and_up(self) -> tuple[Any, ...]:
        """Gate and up of the experts: as one array, or as two of two formats; or up alone."""
        w = self.weights
        if not self.gated:
            return (w["experts.up"],)
        return (w["experts.gate_up"],) if "experts.gate_up" in w else (w["experts.gate"], w["experts.up"])

    def why_not(self, rows: int) -> str:
        """Why the kernels do not compute these experts for so many rows; "" if they do."""
        w, router = self.weights, self.router
        if rows > _MOST_ROWS:
            return "many rows"
        if "experts.down" not in w or not ("experts.gate_up" in w or "experts.up" in w):
            return "experts in several formats"
        if router.experts > MOST_EXPERTS or router.used > MOST_USED or router.groups > MOST_GROUPS:
            return "many experts"
        if isinstance(w["experts.router"], Quantized):
            return "the format of the router"
        if "experts.gate_up" not in w and ("experts.gate_bias" in w or "experts.up_bias" in w):
            return "biases of gate and up that are apart"
        if max(prod(each.shape) for each in (*self.gate_and_up, w["experts.down"])) >= COUNTABLE:
            return "many values"
        return self._why_not_shared()

    def _why_not_shared(self) -> str:
        w, of = self.weights, self.of_shared
        if f"{of}.down" not in w:
            return ""
        if not self.gated:
            return "biases" if _biased(w, of) else ""
        gate, up = (data_of(w[f"{of}.{name}"]).memory for name in ("gate", "up"))
        together = len(gate.stack) == 2 if gate is up else len(memories_beside(w[f"{of}.gate"])) == 2
        return "" if together and not _biased(w, of) else "the formats of the shared expert"


def _biased(weights: Mapping[str, Any], part: str) -> bool:
    return any(name.startswith(part) and name.endswith("_bias") for name in weights)


def mix(
    ops: Any, x: Tensor, of_router: Tensor, given: Mixture, of_dense: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The sum of the experts that the router chooses for each row of x, and of the shared expert. Its result
    is apart beside latent experts; so is that of a dense feed-forward, whose input is `of_dense`.
    """
    logits = _route(ops, of_router, given.weights)
    activated, choice = _activate(ops, _inputs(ops, x, given, of_dense), logits, given)
    w, rows, down = given.weights, len(x), given.shared.get("down")
    arrays = {"x": activated, **choice, "weight": w["experts.down"], "bias": w.get("experts.down_bias")}
    width, shared_width = w["experts.down"].shape[1], 0 if down is None else down.shape[0]
    shared_to = _aligned(ops, rows * width) if given.apart and down is not None else 0
    out = ops.empty((shared_to + rows * shared_width if shared_to else rows * width,))
    _start(ops, "mixture_down", arrays | {"shared": down}, {"shared_to": shared_to}, {"out": out})
    mixed = out[: rows * width].reshape(rows, width)
    return mixed, out[shared_to:].reshape(rows, shared_width) if shared_to else None


def _aligned(ops: Any, values: int) -> int:
    """As many floats, or more, after which kernels can take an array."""
    step = ops.place.alignment // 4
    return -(-values // step) * step


def _route(ops: Any, x: Tensor, weights: Mapping[str, Any]) -> Tensor:
    """The router's logits, then those of the shared expert's gate; if x is the norm of a sum that was put
    off, that too, with the other norms of it.
    """
    matrices = {
        "router": weights["experts.router"], "bias": weights.get("experts.router_bias"),
        "gate": weights.get("shared_expert.router"),
    }  # fmt: skip
    columns = len(matrices["router"]) + (matrices["gate"] is not None)
    arrays: dict[str, Any] = {"x": x}
    numbers: dict[str, Any] = {"eps": 0.0, "norms": 0}
    shape: tuple[int, ...] = (1,)
    places: list[int] = []
    if (later := _routable(x)) is not None and (piece := in_one_piece([n.weight for n in later.norms])):
        whole, places = piece
        parts = later.parts
        arrays = {"x": parts.x, "post": parts.x_norm, "residual": parts.residual, "norm": whole}
        numbers = {"eps": later.norms[0].eps, "norms": len(places)}
        shape = len(places), *x.shape
    total = ops.empty(x.shape if places else (1,))
    outs = {"total": total, "normed": ops.empty(shape), "logits": ops.empty((len(x), columns))}
    _start(ops, "norm_route", arrays | matrices, numbers, outs)
    if later and places:
        later.become(total, *(outs["normed"][place] for place in places))
    return outs["logits"]


def _routable(x: Tensor) -> NormedSum | None:
    """What is put off in x, if the router's kernel can compute it: x is the norm with the first weights."""
    later = x.pending
    if not isinstance(later, NormedSum) or later.norms[0].centered or later.parts.residual is None:
        return None
    same_eps = later.parts.eps in (0, later.norms[0].eps)
    weights = [norm.weight for norm in later.norms]
    mine = later.weight_of(x)
    first = mine is not None and all(mine.offset <= each.offset for each in weights)
    return later if same_eps and first and later.parts.given <= {"x_norm", "residual"} else None


class _Inputs(NamedTuple):
    """What experts get; the other array that the shared one gets, if it is not in the same memory; and how
    many values after the beginning.
    """

    x: Tensor
    other: Tensor | None = None
    shared_from: int = 0


def _inputs(ops: Any, x: Tensor, given: Mixture, of_dense: Tensor | None) -> _Inputs:
    if of_dense is not None:
        return _Inputs(_together(ops, x, of_dense), None, x.size)
    if given.latent:
        return _Inputs(ops.linear_now(x, given.weights["experts.latent_in"]), x)
    return _Inputs(x)


def _activate(ops: Any, inputs: _Inputs, logits: Tensor, given: Mixture) -> tuple[Tensor, dict[str, Tensor]]:
    """The activated values of each row's experts and of its shared expert, and the choice."""
    w, rows, shared = given.weights, len(logits), given.shared
    weight, *up = given.gate_and_up
    n, used = weight.shape[1] // (1 if up or not given.gated else 2), given.router.used
    out = ops.empty((rows, used * n + given.shared_values))
    choice = {"ids": ops.empty((rows, used), np.int32), "weights": ops.empty((rows, used + 1))}
    arrays = {
        "x": inputs.x, "y": inputs.other, "logits": logits,
        "selection_bias": w.get("experts.selection_bias"), "scales": w.get("experts.scales"),
        "weight": weight, "up": up[0] if up else None, "bias": w.get("experts.gate_up_bias"),
        "shared": shared.get("shared"), "shared_up": shared.get("shared_up"),
    }  # fmt: skip
    numbers = given.router.numbers | given.gate.numbers | {"scales_input": int(given.scales_input)}
    numbers["shared_gate"] = logits.shape[1] - given.router.experts
    numbers |= {"shared_from": inputs.shared_from, "gated": int(given.gated)}
    _start(ops, "mixture_up", arrays, numbers, {"out": out, **choice})
    return out, choice


def _together(ops: Any, x: Tensor, other: Tensor) -> Tensor:
    """Two arrays of one shape, one after the other: where they are, or copies."""
    rows, shape = len(x), (2 * len(x), *x.shape[1:])
    if other.memory is x.memory and other.offset == x.offset + x.nbytes and x.is_dense and other.is_dense:
        return Tensor(ops, x.memory, x.dtype, shape, offset=x.offset)
    both = ops.empty(shape)
    both[:rows], both[rows:] = x, other
    return both


def _start(ops: Any, name: str, arrays: Mapping[str, Any], numbers: Any, outs: Any) -> None:
    given = {n: ops.ready(a) if isinstance(a, Tensor) else a for n, a in arrays.items() if a is not None}
    ops.start(name, given, numbers, outs)
