"""A token's queries, keys and values by heads: their norms, rotations and factors, which are put off.

They are computed in one launch, which also writes keys and values to a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from airllm.backends.device.products import ProductHeads
from airllm.backends.device.tensor import Pending, Tensor


class Steps(NamedTuple):
    """What is done to heads: first the norm, unless it is `late`, then the rotation, then the factor. The
    norm is of each head, or of all of them if the weights are so many.
    """

    weight: Tensor | None = None
    eps: float = 0.0
    angles: tuple[Tensor, Tensor, bool] | None = None
    late: bool = False
    factor: float = 1.0

    def normalized(self, weight: Tensor, eps: float) -> Steps | None:
        """With a norm after these; None if there is no such form."""
        if self.weight is not None or self.factor != 1:
            return None
        return self._replace(weight=weight, eps=eps, late=self.angles is not None)

    def rotated(self, angles: tuple[Tensor, Tensor, bool]) -> Steps | None:
        """With a rotation after these; None if there is no such form."""
        return self._replace(angles=angles) if self.angles is None and self.factor == 1 else None

    def times(self, factor: float) -> Steps:
        """With a factor after these."""
        return self._replace(factor=self.factor * factor)


class Heads(Pending):
    """`Steps` of a tensor of one token, (1, heads, dim), that are put off. Without any, a copy is."""

    def __init__(self, ops: Any, source: Tensor, steps: Steps):
        self._ops, self.source, self.steps = ops, source, steps

    def reads(self) -> Sequence[Tensor]:
        """What they are computed from, besides weights."""
        return (self.source,)

    def view(self, of: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        """A row in heads: the norm of the whole row was put off. Other views need the result."""
        if self.source.ndim != 2 or len(shape) != 3:
            return None
        return self._ops.put_heads_off(shape, self.source.reshape(shape), self.steps)

    def settle(self, of: Tensor) -> None:
        """Compute them alone."""
        of.become(_compute(self._ops, self))


def parts_of(tensor: Tensor) -> tuple[Tensor, Steps] | None:
    """The heads that a tensor is computed from, and the steps; None if it is not of one token, or computed
    otherwise.
    """
    if len(tensor) != 1:
        return None
    if isinstance(later := tensor.pending, Heads):
        return later.source, later.steps
    if isinstance(later, ProductHeads):
        return tensor if later.stop - later.start < later.dim else tensor.alias(), Steps()
    if later or not _has_whole_heads(tensor) or tensor.dtype.name != "float32":
        return None
    return tensor, Steps()


def _has_whole_heads(x: Tensor) -> bool:
    """Whether the values of a head lie one after the other."""
    return x.is_dense or (x.ndim == 3 and x.strides[2] == x.itemsize)


def _compute(ops: Any, heads: Heads) -> Tensor:
    source, steps = heads.source, heads.steps
    given = (steps.weight is not None) + (steps.angles is not None) + (steps.factor != 1)
    if given > 1 and source.ndim == 3 and (found := place_heads(ops, source, steps)) is not None:
        return found
    return _step_by_step(ops, source, steps)


def _step_by_step(ops: Any, x: Tensor, steps: Steps) -> Tensor:
    for late in (False, True):
        if steps.weight is not None and steps.late == late:
            flat = x.reshape(1, -1) if steps.weight.size != x.shape[-1] else x
            x = ops.norm_now(flat, steps.weight, steps.eps).reshape(x.shape)
        if steps.angles and not late:
            x = ops.rotate_now(x, *steps.angles)
    if steps.factor != 1:
        x = ops.combine_now("multiply", x, steps.factor)
    return x if x.is_dense else ops.dense(x)


class Kept(NamedTuple):
    """Where keys and values go: a layer of a cache, from a token on."""

    cache: Tensor
    start: int
    keys: tuple[Tensor, Steps]
    values: tuple[Tensor, Steps]


def place_heads(ops: Any, queries: Tensor | None, steps: Steps, kept: Kept | None = None) -> Tensor | None:
    """Compute queries, and put keys and values into a cache, in one launch. None if no kernel does it."""
    source = queries if queries is not None else kept.keys[0] if kept else None
    assert source is not None
    if not _fit(source, queries, steps, kept):
        return None
    dim, memory = source.shape[2], source.memory
    cache = kept.cache if kept else ops.empty((1, dim))
    x = Tensor(ops, memory, source.dtype, (memory.nbytes // (dim * source.itemsize), dim))
    if not ops.place.fuses("rope_append", {"x": x, "cache": cache}):
        return None
    of_keys, of_values = (kept.keys[1], kept.values[1]) if kept else (Steps(), Steps())
    norms = {"q_norm": steps.weight, "k_norm": of_keys.weight, "v_norm": of_values.weight}
    arrays = {"x": x} | {name: weight for name, weight in norms.items() if weight is not None}
    angles = steps.angles or of_keys.angles
    if angles:
        arrays |= {"cos": angles[0], "sin": angles[1]}
    numbers = {
        "heads": 0 if queries is None else queries.shape[1], "q_first": _row(queries),
        "q_step": _step(queries), "dim": dim, "r": angles[0].shape[-1] if angles else 0,
        "interleaved": int(bool(angles and angles[2])),
        "late": int(steps.late or of_keys.late), "eps": max(each.eps for each in (steps, of_keys, of_values)),
        "factor": steps.factor, "q_span": _size(steps.weight, dim), "k_span": _size(of_keys.weight, dim),
    } | _places(kept)  # fmt: skip
    out = ops.empty((1, dim) if queries is None else queries.shape)
    ops.start("rope_append", arrays, numbers, {"q": out, "cache": cache})
    return out


def _fit(source: Tensor, queries: Tensor | None, steps: Steps, kept: Kept | None) -> bool:
    """Whether the kernel computes this: all from one memory, with one rotation and one kind of norm."""
    given = [] if queries is None else [(queries, steps)]
    given += [kept.keys, kept.values] if kept else []
    size = source.shape[-1] * source.itemsize
    if any(x.ndim != 3 or x.memory is not source.memory or x.offset % size for x, _ in given):
        return False
    if any(x.strides[2] != x.itemsize or x.strides[1] % size for x, _ in given):
        return False
    if any(_step(x) != 1 and (x is not queries or _size(each.weight, 0) > x.shape[2]) for x, each in given):
        return False
    if any(x.shape[2] != source.shape[2] for x, _ in given) or (
        kept and kept.cache.shape[3] != source.shape[2]
    ):
        return False
    if any(each.late and _size(each.weight, 0) != source.shape[2] for _, each in given):
        return False
    of_norms = [each for _, each in given if each.weight is not None]
    if len({each.eps for each in of_norms}) > 1:
        return False
    if kept and (kept.keys[1].factor != 1 or kept.values[1]._replace(weight=None, eps=0.0) != Steps()):
        return False
    rotated = [each for _, each in given[: 1 + (queries is not None)]]
    kinds = {(id(each.angles and each.angles[0]), each.late) for each in rotated}
    return len(kinds) == 1


def _size(weight: Tensor | None, otherwise: int) -> int:
    return otherwise if weight is None else weight.size


def _row(x: Tensor | None) -> int:
    return 0 if x is None else x.offset // (x.shape[2] * x.itemsize)


def _step(x: Tensor | None) -> int:
    """Rows from one head to the next."""
    return 1 if x is None or x.shape[1] == 1 else x.strides[1] // (x.shape[2] * x.itemsize)


def _places(kept: Kept | None) -> dict[str, int]:
    """Which rows of the source are keys and values, and where in the cache they go."""
    if kept is None:
        names = ("kv_heads", "k_first", "v_first", "k_from", "v_from", "head_step")
        return dict.fromkeys(names, 0)
    cache, keys = kept.cache, kept.keys[0]
    at = kept.start * cache.shape[3]
    return {
        "kv_heads": keys.shape[1], "k_first": _row(keys), "v_first": _row(kept.values[0]),
        "k_from": at, "v_from": at + cache.strides[0] // cache.itemsize,
        "head_step": cache.strides[1] // cache.itemsize,
    }  # fmt: skip
