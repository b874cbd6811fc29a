"""A token of latent attention: its queries for what tokens keep, and what it keeps, which are put off.

They are computed in one launch, which also writes what is kept to a cache. `airllm.engine.layers` has the
mathematics, in `latent_attention.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from airllm.backends.device.heads import Heads
from airllm.backends.device.products import Product, ProductHeads
from airllm.backends.device.residual import row_of
from airllm.backends.device.tensor import Pending, Tensor

_SLICE = 32  # columns of a head's matrix that a work-group multiplies
_FLOAT = 4  # bytes


class HeadProducts(Pending):
    """The products of a token's heads (1, heads, k) with a matrix (n, k) for each."""

    def __init__(self, ops: Any, source: Tensor, weight: Any):
        self._ops, self.source, self.weight = ops, source if source.pending else source.alias(), weight

    def reads(self) -> Sequence[Tensor]:
        """What they are computed from, besides weights."""
        return (self.source,)

    def settle(self, of: Tensor) -> None:
        """Compute them, with the merging of parts that their source is."""
        if not isinstance(self.source.pending, Merged):
            of.become(self._ops.linear_heads_now(self.source, self.weight))
            return
        out = self._ops.empty(of.shape)
        arrays = {"partial": self.source.pending.parts, "weight": self.weight}
        self._ops.start("linear_merged", arrays, {}, {"out": out})
        of.become(out)


class Joined(Pending):
    """Two parts of a token's heads beside each other, times a factor."""

    def __init__(self, ops: Any, first: Tensor, second: Tensor, factor: float = 1.0):
        self._ops, self.first, self.second, self.factor = ops, first, second, factor

    def reads(self) -> Sequence[Tensor]:
        """What they are computed from, besides weights."""
        return self.first, self.second

    def times(self, factor: float) -> Joined:
        """With a factor after this one."""
        return Joined(self._ops, self.first, self.second, self.factor * factor)

    def settle(self, of: Tensor) -> None:
        """Compute each part alone."""
        found = self._ops.join_now(self.first, self.second)
        of.become(found if self.factor == 1 else self._ops.combine_now("multiply", found, self.factor))


class _OfParts(Pending):
    """What is computed of the parts in a tensor, in any shape."""

    def __init__(self, ops: Any, parts: Tensor):
        self._ops, self.parts = ops, parts

    def reads(self) -> Sequence[Tensor]:
        """What it is computed from, besides weights."""
        return (self.parts,)

    def view(self, of: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The same in another shape."""
        return self._ops.put_off(shape, self)


class Sum(_OfParts):
    """The sum of parts along the first axis of a tensor."""

    def settle(self, of: Tensor) -> None:
        """Compute it."""
        total = self.parts[0]
        for part in self.parts[1:] if len(self.parts) > 1 else ():
            total = self._ops.combine_now("add", total, part)
        of.become(total.reshape(of.shape))


class Merged(_OfParts):
    """What a token attended to, of which there are parts (heads, splits, 2 + values)."""

    def settle(self, of: Tensor) -> None:
        """Compute it alone."""
        out = self._ops.empty(of.shape)
        self._ops.start("merge_parts", {"partial": self.parts}, {}, {"out": out})
        of.become(out)


class _Queries(NamedTuple):
    """Where queries (heads, dim) are, or the row `x` whose product with `weight` they are: its norm, if there
    are weights of one.
    """

    x: Tensor
    weight: Any = None
    norm: Tensor | None = None
    eps: float = 0.0


def append(ops: Any, queries: Joined, kept: Joined, cache: Tensor, start: int) -> Tensor | None:
    """Write what a token keeps to a layer of a cache (1, 1, room, row). Returns the parts (parts, heads, 1,
    row) whose sum its queries are; None if no kernel does it.
    """
    first, turned = queries.first.pending, queries.second.pending
    if not isinstance(first, HeadProducts) or not isinstance(turned, Heads):
        return None
    given, angles = _queries_of(first.source, turned), turned.steps.angles
    latent = _latent_of(kept, angles) if angles else None
    if given is None or latent is None or angles is None:
        return None
    if given.norm is not None and given.eps != latent.steps.eps:
        return None
    arrays = {
        "x": _whole(ops, given.x), "x_norm": given.norm, "weight": first.weight, "queries": given.weight,
        "keep": _whole(ops, latent.source), "keep_norm": latent.steps.weight,
        "cos": ops.ready(angles[0]), "sin": ops.ready(angles[1]),
    }  # fmt: skip
    arrays = {name: each for name, each in arrays.items() if each is not None}
    _, heads, plain = first.source.shape
    rank, r = latent.source.shape[2], angles[0].shape[-1]
    numbers = {
        "x_from": given.x.offset // _FLOAT, "keep_from": latent.source.offset // _FLOAT,
        "cache_from": start * (cache.strides[2] // cache.itemsize), "heads": heads,
        "k": 0 if given.weight is None else given.x.shape[1], "plain": plain, "rank": rank, "r": r,
        "interleaved": int(angles[2]), "eps": latent.steps.eps, "factor": queries.factor,
    }  # fmt: skip
    if turned.source.shape[2] != 2 * r or not ops.place.fuses("latent_append", arrays | {"cache": cache}):
        return None
    parts = ops.empty((-(-plain // _SLICE), heads, 1, rank + 2 * r))
    ops.start("latent_append", arrays, numbers, {"q": parts, "cache": cache})
    return parts


def _queries_of(plain: Tensor, turned: Heads) -> _Queries | None:
    """Where the plain values of queries and those that `turned` rotates lie together, or are computed."""
    other = turned.source
    if turned.steps.weight is not None or turned.steps.factor != 1:
        return None
    of_plain, of_other = plain.pending, other.pending
    if isinstance(of_plain, ProductHeads) and isinstance(of_other, ProductHeads):
        ends = of_plain.start, of_plain.stop, of_other.stop
        whole = of_plain.product is of_other.product and ends == (0, of_other.start, of_plain.dim)
        return _product_of(of_plain.product) if whole else None
    if of_plain or of_other or not _are_adjacent(plain, other):
        return None
    dim = plain.shape[2] + other.shape[2]
    return _Queries(plain) if plain.strides[1] == other.strides[1] == dim * _FLOAT else None


def _product_of(tensor: Tensor) -> _Queries | None:
    product = tensor.pending
    if not isinstance(product, Product) or product.bias is not None:
        return None
    if not product.x.pending:
        return _Queries(product.x, product.weight) if product.x.is_dense else None
    row = row_of(product.x)
    if row is None or row.norm or not row.parts.given <= {"x_norm"} or not row.parts.x.is_dense:
        return None
    return _Queries(row.parts.x, product.weight, row.parts.x_norm, row.eps)


def _latent_of(kept: Joined, angles: Any) -> Heads | None:
    """The latent of what is kept, normalized, if a key of one head follows it, rotated by the same angles."""
    latent, key = kept.first.pending, kept.second.pending
    if not isinstance(latent, Heads) or not isinstance(key, Heads):
        return None
    of_latent, of_key = latent.steps, key.steps
    if kept.factor != 1 or of_latent.factor != 1 or of_key.factor != 1:
        return None
    if of_latent.weight is None or of_latent.angles or of_key.weight is not None or not of_key.angles:
        return None
    if any(one is not other for one, other in zip(angles, of_key.angles, strict=True)):
        return None
    fits = latent.source.shape[1:] == (1, of_latent.weight.size) and key.source.shape[1] == 1
    return latent if fits and _are_adjacent(latent.source, key.source) else None


def _are_adjacent(first: Tensor, second: Tensor) -> bool:
    """Whether the values of a second part of heads follow those of the first."""
    return first.memory is second.memory and second.offset == first.offset + first.shape[2] * _FLOAT


def _whole(ops: Any, x: Tensor) -> Tensor:
    """All values in the memory of a tensor, so that kernels can take any of them."""
    return Tensor(ops, x.memory, x.dtype, (x.memory.nbytes // _FLOAT,))
