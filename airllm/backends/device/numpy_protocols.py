"""NumPy's functions on arrays that stay on a device, so that code written for NumPy arrays computes there.

`np.add(x, y)`, `x *= 2` and `np.concatenate` are calls of the ops that the arrays belong to. A function that
they do not have raises TypeError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Ops(Protocol):
    """What the functions need. `elementwise`: NumPy's functions that `combine` computes."""

    @property
    def elementwise(self) -> Sequence[str]: ...

    def empty(self, shape: tuple[int, ...], dtype: Any = ...) -> Any: ...

    def assign(self, to: Any, given: Any) -> None: ...

    def combine(self, name: str, x: Any, y: Any = None, out: Any = None) -> Any: ...


class NumPyProtocols(np.lib.mixins.NDArrayOperatorsMixin):
    """The base of such arrays, which have `ops`."""

    __slots__ = ()
    ops: Any

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", (None,))[0]
        if method != "__call__" or options or ufunc.__name__ not in self.ops.elementwise:
            raise TypeError(f"{self.ops!r} has no numpy.{ufunc.__name__}, expected one of {self._known()}")
        x, y = (*inputs, None)[:2]
        return self.ops.combine(ufunc.__name__, x, y, out)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        call = _FUNCTIONS.get(function)
        if call is None:
            raise TypeError(f"{self.ops!r} has no numpy.{function.__name__}, expected one of {self._known()}")
        return call(self.ops, *arguments, **options)

    def _known(self) -> str:
        return ", ".join([*self.ops.elementwise, *(function.__name__ for function in _FUNCTIONS)])


def _concatenate(ops: Ops, parts: Sequence[Any]) -> Any:
    """The parts, one after the other along the first axis."""
    if len(parts) == 1:
        return parts[0]
    out = ops.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    at = 0
    for part in parts:
        ops.assign(out[at : at + len(part)], part)
        at += len(part)
    return out


_FUNCTIONS: dict[Any, Any] = {
    np.concatenate: _concatenate,
    np.copyto: lambda ops, to, given: ops.assign(to, given),
    np.empty_like: lambda ops, like, shape=None: ops.empty(shape or like.shape, like.dtype),
    np.clip: lambda ops, x, least, most: np.minimum(np.maximum(x, least), most),
}
