"""Products of a row with matrices, which are put off and computed together, with the norm before them, and
with what multiplies them.

Each work-group computes the norm for itself, so that nothing waits for another group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from airllm.backends.device.residual import parts_of, row_of
from airllm.backends.device.stacks import data_of, memories_beside, whole_in, whole_of
from airllm.backends.device.tensor import Pending, Tensor

_NAMES = ("weight", "shared", "up")  # of matrices of several formats, by the names of kernels
ACTIVATIONS = {"silu": 1, "tanh": 2, "none": 3}  # their numbers in kernels


class Products(Pending):
    """The products of a row with matrices that lie one after the other in memory, or in several memories."""

    def __init__(self, ops: Any, x: Tensor, weight: Any, bias: Tensor | None):
        self._ops, self.x, self._weight, self._bias = ops, x, weight, bias
        self.memories = memories_beside(weight)
        together = len(x) == 1 and len(self.memories) <= len(_NAMES)
        if len(self.memories) > 1 and not (together and ops.place.fuses("linear_beside", self._weights())):
            self.memories = (data_of(weight).memory,)
        self.rows = [n for memory in self.memories for n in memory.stack]
        self._bias_start = sum(self.rows[: self.part(weight)])
        self.results: dict[int, Tensor] = {}
        self.out: Tensor | None = None
        self._scaled: int | None = None  # the one that `_factors` multiply
        self._factors: Tensor | None = None

    def reads(self) -> Sequence[Tensor]:
        """What they are computed from, besides weights."""
        return (self.x,)

    def settle(self, of: Tensor) -> None:
        """Compute all of them."""
        weights, bias = self._weights(), self._whole_bias()
        start = sum(self.rows[: self._scaled or 0])
        self.out = multiply(self._ops, self.x, weights, bias=bias, factors=self._factors, factors_from=start)
        if self.out is None:
            self.out = self._ops.linear_now(self.x, weights["weight"], bias)
        for i, tensor in self.results.items():
            tensor.become(self.result(i))

    def result(self, i: int) -> Tensor:
        """One of them, once they are computed."""
        assert self.out is not None
        start = sum(self.rows[:i])
        return self.out[:, start : start + self.rows[i]]

    def scale(self, of: Tensor, factors: Tensor) -> bool:
        """Multiply one of them, which is asked for no more; False if there is no kernel of it."""
        if self.out is not None or self._factors is not None or len(self.x) != 1:
            return False
        if not self._ops.place.fuses("linear_beside", self._weights()):
            return False
        self._scaled = next(i for i, each in self.results.items() if each is of)
        self._factors = factors
        return True

    def is_changed(self, i: int) -> bool:
        """Whether one of them has other values than the product."""
        return i == self._scaled

    def gates(self, x: Tensor) -> bool:
        """Whether x is the first of two, which may gate the second."""
        return self.out is None and len(self.rows) == 2 and len(self.x) == 1 and self.results.get(0) is x

    def gate(self, activation: int, factor: float) -> Tensor | None:
        """activation(first * factor) * second, in one launch; None if there is no kernel."""
        if self.out is not None or self._bias is not None or len(self.rows) != 2 or len(self.x) != 1:
            return None
        weights = self._weights()
        if factor != 1 and not self._ops.place.fuses("linear_beside", weights):
            return None
        result = multiply(self._ops, self.x, weights, activation, gate_factor=factor)
        if result is None:
            result = self._ops.gated(self.x, weights["weight"], self.rows[0], activation)
        if result is not None:
            self.results = {}  # they refer to this, and would be freed only by the collector of cycles
        return result

    def part(self, weight: Any) -> int:
        """The index of one of the matrices."""
        data = data_of(weight)
        row, starts = data.offset // data.strides[0], np.cumsum((0, *data.memory.stack))
        before = self.memories[: self.memories.index(data.memory)]
        return sum(len(each.stack) for each in before) + int(np.searchsorted(starts, row))

    def _weights(self) -> dict[str, Any]:
        """The matrices, those of one format as one, by the names of kernels."""
        if len(self.memories) == 1:
            return {"weight": whole_of(self._weight)}
        return {name: whole_in(self._ops, each) for name, each in zip(_NAMES, self.memories, strict=False)}

    def _whole_bias(self) -> Tensor | None:
        """The bias of all of them, which lies in one piece of memory."""
        if (b := self._bias) is None:
            return None
        start = b.offset - self._bias_start * b.itemsize
        return Tensor(self._ops, b.memory, b.dtype, (sum(self.rows),), offset=start)


class ProductHeads(Pending):
    """A row's product with one matrix, which is put off, in heads (1, heads, dim): values `start` to `stop`
    of each.
    """

    def __init__(self, ops: Any, product: Tensor, heads: int, start: int, stop: int):
        self._ops, self.product, self._heads = ops, product, heads
        self.start, self.stop = start, stop

    @property
    def dim(self) -> int:
        """All values of a head."""
        return self.product.shape[1] // self._heads

    def reads(self) -> Sequence[Tensor]:
        """What it is computed from, besides weights."""
        return self.product.pending.reads() if self.product.pending else (self.product,)

    def columns(self, of: Tensor, start: int, stop: int) -> Tensor:
        """Some of the values of each head."""
        first, last = self.start + start, self.start + stop
        part = ProductHeads(self._ops, self.product, self._heads, first, last)
        return self._ops.put_off((1, self._heads, stop - start), part)

    def settle(self, of: Tensor) -> None:
        """Compute the whole product."""
        product = self.product.alias()
        of.become(product.reshape(1, self._heads, self.dim)[..., self.start : self.stop])


class ScaledGate(Pending):
    """The first of two products times a number."""

    def __init__(self, ops: Any, gate: Tensor, factor: float):
        self._ops, self.gate, self.factor = ops, gate, factor

    def reads(self) -> Sequence[Tensor]:
        """What it is computed from."""
        return (self.gate,)

    def settle(self, of: Tensor) -> None:
        """Compute it alone."""
        of.become(self._ops.combine_now("multiply", self.gate, self.factor))


class Product(Pending):
    """The product of a row with one matrix, of which an activation may be part."""

    def __init__(self, ops: Any, x: Tensor, weight: Any, bias: Tensor | None):
        self._ops, self.x, self.weight, self.bias = ops, x if x.pending else x.alias(), weight, bias

    def reads(self) -> Sequence[Tensor]:
        """What it is computed from, besides weights."""
        return (self.x,)

    def view(self, of: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        """Its heads."""
        if len(shape) != 3 or shape[0] != 1:
            return None
        return self._ops.put_off(shape, ProductHeads(self._ops, of, shape[1], 0, shape[2]))

    def settle(self, of: Tensor) -> None:
        """Compute it alone."""
        found = multiply(self._ops, self.x, {"weight": self.weight}, bias=self.bias)
        of.become(self._ops.linear_now(self.x, self.weight, self.bias) if found is None else found)

    def activated(self, activation: str, factors: Tensor | None) -> Tensor:
        """activation(product) * factors."""
        given = ACTIVATIONS[activation]
        found = multiply(self._ops, self.x, {"weight": self.weight}, given, self.bias, factors, False)
        assert found is not None
        return found


class ProductSum(Pending):
    """The sum of two products of one row each, times a number each."""

    def __init__(self, ops: Any, first: tuple[Product, float], second: tuple[Product, float]):
        self._ops, self._parts = ops, (first, second)

    def reads(self) -> Sequence[Tensor]:
        """What it is computed from, besides weights."""
        return [each.x for each, _ in self._parts]

    def settle(self, of: Tensor) -> None:
        """Compute both."""
        (first, factor), (second, other_factor) = self._parts
        arrays = {
            "x": self._ops.ready(first.x), "weight": first.weight, "y": self._ops.ready(second.x),
            "shared": second.weight,
        }  # fmt: skip
        out = self._ops.empty(of.shape)
        numbers = {"factor": factor, "other_factor": other_factor}
        self._ops.start("linear_sum", arrays, numbers, {"out": out})
        of.become(out)


def product_sum(ops: Any, x: Tensor, y: Tensor) -> ProductSum | None:
    """The sum of two tensors, if both are products that are put off, maybe times a number, and there is a
    kernel of it.
    """
    first, second = _scaled_product(x), _scaled_product(y)
    if first is None or second is None:
        return None
    fuses = ops.place.fuses("linear_sum", {"weight": first[0].weight, "shared": second[0].weight})
    return ProductSum(ops, first, second) if fuses else None


def _scaled_product(x: Tensor) -> tuple[Product, float] | None:
    parts = parts_of(x)
    product, factor = (
        (parts.x.pending, parts.factor) if parts and parts.given <= {"factor"} else (x.pending, 1.0)
    )
    return (product, factor) if isinstance(product, Product) and product.bias is None else None


def multiply(
    ops: Any,
    x: Tensor,
    weights: dict[str, Any],
    activation: int = 0,
    bias: Tensor | None = None,
    factors: Tensor | None = None,
    paired: bool = True,
    factors_from: int = 0,
    gate_factor: float = 1.0,
) -> Tensor | None:
    """The products of a row with matrices, with what is put off in it, in one launch; with an activation, the
    first, times `gate_factor`, gate the second, where one matrix has both if `paired`, or else `factors`, or
    ones. Without one, `factors` multiply as many from `factors_from` on. None if another kernel computes it
    as well: without an activation or factors, that of one matrix with a row that is there; and the gated
    product of one.
    """
    given = {"bias": bias, "factors": factors}
    more: dict[str, Any] = {name: ops.ready(each) for name, each in given.items() if each is not None}
    both = int(bool(activation) and paired and len(weights) == 1)
    numbers: dict[str, Any] = {"activation": activation, "paired": both, "eps": 0.0, "factor": 1.0}
    numbers |= {"gate_factor": gate_factor, "factors_from": factors_from}
    n = sum(data_of(each).shape[0] for each in weights.values()) // (
        1 + (both or len(weights) == 2 and activation > 0)
    )
    row = row_of(x) if len(x) == 1 and all(each.dtype == np.float32 for each in more.values()) else None
    arrays = row.arrays | weights | more if row else {}
    if row and ops.place.fuses("normed_linear", arrays):
        arrays |= {name: ops.ready(each) for name, each in row.arrays.items()}
        numbers |= {"eps": row.eps, "factor": row.parts.factor}
        width, step = x.shape[1], ops.place.alignment // x.itemsize
        rows = ops.empty((2, -(-width // step) * step))
        out = ops.empty((1, n))
        ops.start("linear_beside", arrays, numbers, {"out": out, "rows": rows})
        row.become(rows[:1, :width], rows[1:, :width])
        return out
    if len(weights) == 1 and (not activation or both) and gate_factor == 1 and (activation or not factors):
        return None
    out = ops.empty((1, n))
    ops.start("linear_beside", {"x": ops.ready(x)} | weights | more, numbers, {"out": out})
    return out
