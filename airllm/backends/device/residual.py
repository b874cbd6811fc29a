"""The sums and norms between two halves of a layer, which are put off and computed in one launch.

What a half adds may be normalized, scaled, or the sum of two such rows; then comes the residual, and the norm
of the sum. Each of these alone is a launch, and most of the time of a launch is not its work.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from airllm.backends.device.tensor import Pending, Tensor

_ARRAYS = ("x", "x_norm", "y", "y_norm", "post", "residual", "scale")


class Parts(NamedTuple):
    """(post((x by x_norm) + (y by y_norm)) * factor + residual) * scale, where what is None is left out. The
    norms are those of `rms_norm`, with one `eps`. `x`, `y` and `residual` have one shape (rows, width),
    `scale` has one element.
    """

    x: Tensor
    x_norm: Tensor | None = None
    y: Tensor | None = None
    y_norm: Tensor | None = None
    post: Tensor | None = None
    factor: float = 1.0
    residual: Tensor | None = None
    scale: Tensor | None = None
    eps: float = 0.0

    @property
    def given(self) -> set[str]:
        """Which of them there are, besides x."""
        found = {name for name in _ARRAYS[1:] if getattr(self, name) is not None}
        return found | ({"factor"} if self.factor != 1 else set())

    @property
    def arrays(self) -> dict[str, Tensor]:
        """Those that there are, by the names of kernels."""
        return {name: each for name in _ARRAYS if (each := getattr(self, name)) is not None}

    @property
    def is_open(self) -> bool:
        """Whether a residual may still come."""
        return self.residual is None and self.scale is None

    @property
    def is_pair_of_norms(self) -> bool:
        """Whether it is the sum of two normalized rows, which may be normalized."""
        return self.given == {"x_norm", "y", "y_norm"}

    def plus(self, other: Parts | None, tensor: Tensor) -> Parts | None:
        """The sum with a tensor, or with what is put off in it; None if that has no such form. What is x is
        computed now: a layer ends with a sum, and then its matrices may leave the device.
        """
        if other and self.given == other.given == {"x_norm"} and self.eps == other.eps:
            return self._replace(y=other.x, y_norm=other.x_norm)
        if self.is_open:
            return self._replace(x=self.x.alias(), residual=tensor.alias())
        return self._replace(y=tensor.alias()) if self.given == {"residual"} else None

    def times(self, number: float) -> Parts | None:
        """The product with a number; None if that has no such form."""
        return self._replace(factor=self.factor * number) if self.is_open else None


def sum_of(x: Tensor, y: Tensor) -> Parts:
    """The sum of two tensors of one shape, with what is put off in them."""
    of_x, of_y = parts_of(x), parts_of(y)
    for mine, other, tensor in ((of_x, of_y, y), (of_y, of_x, x)):
        if mine and (found := mine.plus(other, tensor)):
            return found
    return Parts(x.alias(), residual=y.alias())


def parts_of(tensor: Tensor) -> Parts | None:
    """What a tensor will be computed from, if it is put off in this form."""
    return tensor.pending.parts if isinstance(tensor.pending, Residual) else None


class Residual(Pending):
    """`Parts` that are put off."""

    def __init__(self, ops: Any, parts: Parts):
        self._ops, self.parts = ops, parts

    def reads(self) -> Sequence[Tensor]:
        """What it is computed from, besides weights."""
        return _rows(self.parts)

    def settle(self, of: Tensor) -> None:
        """Compute it without a norm of it."""
        of.become(compute(self._ops, self.parts)[0])


class Norm(NamedTuple):
    """A norm of the sum: that of `layer_norm` if it is `centered`, else of `rms_norm`."""

    weight: Tensor
    eps: float
    centered: bool = False
    bias: Tensor | None = None

    @property
    def whole(self) -> Tensor | None:
        """The weights with the bias, if there is one, as one array; None if they do not lie so in memory."""
        w, b = self.weight, self.bias
        if b is None:
            return w
        together = b.memory is w.memory and b.offset == w.offset + w.nbytes and b.dtype == w.dtype
        return Tensor(w.ops, w.memory, w.dtype, (2, *w.shape), offset=w.offset) if together else None


class NormedSum(Pending):
    """A sum and norms of it, which are put off together."""

    def __init__(self, ops: Any, parts: Parts, total: Tensor):
        self._ops, self.parts, self.norms = ops, parts, list[Norm]()
        self._total, self._normed = weakref.ref(total), list[weakref.ref[Tensor]]()

    def promise(self, norm: Norm, normed: Tensor) -> None:
        """Compute this norm too."""
        self.norms.append(norm)
        self._normed.append(weakref.ref(normed))

    def weight_of(self, x: Tensor) -> Tensor | None:
        """The weights of the norm that x will be; None if it is the sum."""
        of_x = (norm.weight for norm, each in zip(self.norms, self._normed, strict=True) if each() is x)
        return next(of_x, None)

    def takes(self, x: Tensor, eps: float) -> bool:
        """Whether an `rms_norm` of x can be one more of these."""
        return self._total() is x and not self.norms[0].centered and self.norms[0].eps == eps

    def reads(self) -> Sequence[Tensor]:
        """What they are computed from, besides weights."""
        return _rows(self.parts)

    def settle(self, of: Tensor) -> None:
        """Compute all of them."""
        self.become(*compute(self._ops, self.parts, self.norms))

    def become(self, total: Tensor, *normed: Tensor) -> None:
        """The sum and the norms were computed."""
        for result, each in zip((self._total, *self._normed), (total, *normed), strict=True):
            if (tensor := result()) is not None:
                tensor.become(each)


def _rows(parts: Parts) -> Sequence[Tensor]:
    return [each for each in (parts.x, parts.y, parts.residual) if each is not None]


class Row(NamedTuple):
    """A row that the product with it may compute: a sum, or the only norm of one."""

    tensor: Tensor
    parts: Parts
    norm: Norm | None
    eps: float

    @property
    def arrays(self) -> dict[str, Tensor]:
        """What it is computed from, by the names of kernels."""
        p = self.parts
        given = {"x": p.x, "post": p.x_norm, "residual": p.residual, "scale": p.scale}
        given["norm"] = self.norm.weight if self.norm else None
        return {name: each for name, each in given.items() if each is not None}

    def become(self, total: Tensor, normed: Tensor) -> None:
        """The sum and its norm, if it has one, were computed."""
        later = self.tensor.pending
        if isinstance(later, NormedSum):
            later.become(total, normed)
        else:
            self.tensor.become(total)


def row_of(x: Tensor) -> Row | None:
    """What is put off in x, if a product can compute it."""
    later, norm = x.pending, None
    if isinstance(later, NormedSum) and len(later.norms) == 1 and later.weight_of(x) is not None:
        norm = later.norms[0]
    elif not isinstance(later, Residual):
        return None
    parts = later.parts
    eps = {each.eps for each in (norm, parts if parts.x_norm is not None else None) if each}
    if parts.y is not None or parts.post is not None or (norm and norm.centered) or len(eps) > 1:
        return None
    return Row(x, parts, norm, max(eps, default=0.0))


def in_one_piece(weights: Sequence[Tensor]) -> tuple[Tensor, list[int]] | None:
    """Vectors that lie one after the other in memory as one array, and the place of each of them in it."""
    order = sorted(weights, key=lambda each: each.offset)
    first = order[0]
    for i, each in enumerate(order):
        if each.memory is not first.memory or each.offset != first.offset + i * first.nbytes:
            return None
    whole = Tensor(first.ops, first.memory, first.dtype, (len(order), first.size), offset=first.offset)
    return whole, [(each.offset - first.offset) // first.nbytes for each in weights]


def compute(ops: Any, parts: Parts, norms: Sequence[Norm] = ()) -> list[Tensor]:
    """The sum, and the norms of it that are asked for: by a kernel of its own where there is one, else in one
    launch if the device can, else in more.
    """
    if (found := _simple(ops, parts, norms)) is not None:
        return found
    arrays: dict[str, Any] = {name: ops.ready(each) for name, each in parts.arrays.items()}
    places = [0] * len(norms)
    if len(norms) == 1:
        arrays["norms"] = norms[0].whole
    elif norms:
        arrays["norms"], places = in_one_piece([each.weight for each in norms]) or (None, places)
    eps = {each.eps for each in norms} | ({parts.eps} if parts.eps else set())
    if arrays.get("norms", 0) is None or len(eps) > 1 or not ops.place.fuses("residual_norms", arrays):
        return _apart(ops, parts, norms)
    first = norms[0] if norms else None
    numbers: dict[str, Any] = {
        "count": len(norms), "eps": max(eps, default=0.0), "factor": parts.factor,
        "centered": int(bool(first and first.centered)),
        "biased": int(bool(first and first.bias is not None)),
    }  # fmt: skip
    shape = parts.x.shape
    outs = {"total": ops.empty(shape), "normed": ops.empty((len(norms), *shape) if norms else (1,))}
    ops.start("residual_norms", arrays, numbers, outs)
    return [outs["total"], *(outs["normed"][place] for place in places)]


def _simple(ops: Any, parts: Parts, norms: Sequence[Norm]) -> list[Tensor] | None:
    """What one op computes; it has kernels for longer rows, and for each dtype."""
    if len(norms) == 1 and parts.given == {"residual"} and not norms[0].centered:
        return list(ops.add_norm_now(parts.x, parts.residual, norms[0].weight, norms[0].eps))
    if norms:
        return None
    if parts.given == {"x_norm"}:
        return [ops.norm_now(parts.x, parts.x_norm, parts.eps)]
    if parts.given == {"residual"}:
        return [ops.combine_now("add", parts.x, parts.residual)]
    return [ops.combine_now("multiply", parts.x, parts.factor)] if parts.given == {"factor"} else None


def _apart(ops: Any, parts: Parts, norms: Sequence[Norm]) -> list[Tensor]:
    """The same in two launches or more, for a device that binds few arrays to one, and for norms whose
    weights are apart.
    """
    if norms:
        total = compute(ops, parts)[0]
        return [total, *(_norm_alone(ops, total, each) for each in norms)]
    first = compute(ops, parts._replace(factor=1.0, residual=None, scale=None))[0]
    return compute(ops, Parts(first, factor=parts.factor, residual=parts.residual, scale=parts.scale))


def _norm_alone(ops: Any, x: Tensor, norm: Norm) -> Tensor:
    if norm.centered:
        return ops.layer_norm_now(x, norm.weight, norm.bias, norm.eps)
    return ops.norm_now(x, norm.weight, norm.eps)
