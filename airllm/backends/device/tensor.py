"""Arrays that stay on a device: the operands and results of `DeviceOps`.

They follow NumPy's protocols (`numpy_protocols.py`). Values reach the host only by `numpy()` or
`numpy.asarray(tensor)`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from airllm.backends.device.numpy_protocols import NumPyProtocols, Ops

_ON_DEVICE = 4  # DLPack's kDLOpenCL: any device whose memory the host cannot read


class ResidentCounter(Protocol):
    """Counts bytes of arrays on a device."""

    def add(self, *, resident: int) -> None: ...


class Memory:
    """Memory on a device. It is counted until nothing refers to it.

    `stack`: the rows of each of several arrays that lie in it one after the other. `beside`: the memories of
    matrices of several formats that are multiplied together, this one among them. `tensors`: how many tensors
    are in it.
    """

    def __init__(self, buffer: Any, nbytes: int, counters: ResidentCounter):
        self.buffer, self.nbytes, self._counters = buffer, nbytes, counters
        self.stack: tuple[int, ...] = ()
        self.beside: tuple[weakref.ref[Memory], ...] = ()
        self.kind: Any = None  # of the stack: its dtype, the shape of a row, and its format, if it has one
        self.tensors = 0
        counters.add(resident=nbytes)

    def __del__(self) -> None:
        self._counters.add(resident=-self.nbytes)


class TensorOps(Ops, Protocol):
    """What a tensor asks of its ops."""

    def device(self) -> str: ...

    def dense(self, tensor: Tensor) -> Tensor: ...

    def copy(self, tensor: Tensor) -> Tensor: ...

    def to_host(self, tensor: Tensor) -> np.ndarray: ...


class Pending:
    """A computation that is put off until its result is used."""

    def reads(self) -> Sequence[Tensor]:
        """What it is computed from, besides weights."""
        raise NotImplementedError

    def settle(self, of: Tensor) -> None:
        """Compute it; `of` becomes the result."""
        raise NotImplementedError

    def view(self, of: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        """The result `of` in another shape, put off as well; None if that needs the result."""
        return None

    def columns(self, of: Tensor, start: int, stop: int) -> Tensor | None:
        """A part of the last axis of the result, likewise."""
        return None


class Tensor(NumPyProtocols):
    """An array on a device, or a view of one: `strides` and `offset` are in bytes, as in NumPy."""

    __slots__ = ("__weakref__", "_memory", "_offset", "_strides", "dtype", "ops", "pending", "shape")

    def __init__(
        self,
        ops: TensorOps,
        memory: Memory | None,
        dtype: np.dtype,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ):
        self.ops, self.dtype, self.shape = ops, dtype, shape
        self._offset, self._memory = offset, memory
        self._strides = dense_strides(shape, dtype.itemsize) if strides is None else strides
        self.pending: Pending | None = None
        if memory:
            memory.tensors += 1

    def __del__(self) -> None:
        if self._memory:
            self._memory.tensors -= 1

    def postpone(self, pending: Pending) -> None:
        """Have other values from now on, which are computed when they are used."""
        if self._memory:
            self._memory.tensors -= 1
        self._memory, self.pending = None, pending
        self._strides, self._offset = dense_strides(self.shape, self.itemsize), 0

    def become(self, other: Tensor) -> None:
        """Have the memory of another tensor of this shape."""
        memory = other.memory
        memory.tensors += 1
        if self._memory:
            self._memory.tensors -= 1
        self._memory, self._strides, self._offset, self.pending = memory, other.strides, other.offset, None

    def alias(self) -> Tensor:
        """Another tensor of the same memory."""
        return Tensor(self.ops, self.memory, self.dtype, self.shape, self.strides, self.offset)

    @property
    def is_alone(self) -> bool:
        """Whether no other tensor sees its memory."""
        return self.memory.tensors == 1

    def overlaps(self, other: Tensor) -> bool:
        """Whether both have a byte in common."""
        if other.pending or self.memory is not other.memory:
            return False
        return self.offset < other.offset + other.span and other.offset < self.offset + self.span

    @property
    def memory(self) -> Memory:
        """Where it is. Computes what is pending."""
        if self._memory is None:
            assert self.pending, "a tensor without memory has something pending"
            self.pending.settle(self)
            assert self._memory
        return self._memory

    @property
    def strides(self) -> tuple[int, ...]:
        if self._memory is None:
            self.memory  # noqa: B018  computes what is pending
        return self._strides

    @property
    def offset(self) -> int:
        if self._memory is None:
            self.memory  # noqa: B018
        return self._offset

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        steps = zip(self.shape, self.strides, strict=True)
        return sum((n - 1) * stride for n, stride in steps) + self.itemsize if self.size else 0

    @property
    def is_dense(self) -> bool:
        """Whether the elements are C-contiguous."""
        expected = self.itemsize
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1 and stride != expected:
                return False
            expected *= n
        return True

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Tensor {self.dtype} {self.shape} on {self.ops.device()}>"

    def __dlpack_device__(self) -> tuple[int, int]:
        return _ON_DEVICE, 0

    # ---- views ----

    def _view(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
        return Tensor(self.ops, self.memory, self.dtype, shape, strides, offset)

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one axis may be -1. A copy if the strides allow no view."""
        sizes = _with_size(shape if isinstance(shape[0], int) else tuple(shape[0]), self.size)
        if sizes == self.shape:
            return self
        if self.pending and (later := self.pending.view(self, sizes)) is not None:
            return later
        if self.is_dense:
            return self._view(sizes, dense_strides(sizes, self.itemsize), self.offset)
        lead = self.shape[:-1]
        if sizes[: len(lead)] == lead and self.strides[-1] == self.itemsize:  # divides the last axis
            inner = dense_strides(sizes[len(lead) :], self.itemsize)
            return self._view(sizes, (*self.strides[:-1], *inner), self.offset)
        return self.ops.dense(self).reshape(sizes)

    def swapaxes(self, a: int, b: int) -> Tensor:
        """A view with two axes exchanged."""
        if self.pending and abs(a - b) == 1 and 1 in (self.shape[a], self.shape[b]):
            sizes = list(self.shape)
            sizes[a], sizes[b] = sizes[b], sizes[a]
            return self.reshape(*sizes)
        order = list(range(self.ndim))
        order[a], order[b] = order[b], order[a]
        shape, strides = (tuple(each[i] for i in order) for each in (self.shape, self.strides))
        return self._view(shape, strides, self.offset)

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, slice) and index.indices(len(self)) == (0, len(self), 1):
            return self
        if self.pending and (some := _columns(index)) is not None:
            start, stop, step = some.indices(self.shape[-1])
            later = self.pending.columns(self, start, stop) if step == 1 else None
            if later is not None:
                return later
        index = _without_ellipsis(index if isinstance(index, tuple) else (index,), self.ndim)
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for axis, (n, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            part = index[axis] if axis < len(index) else slice(None)
            if isinstance(part, slice):
                start, stop, step = part.indices(n)
                if step != 1:
                    raise IndexError(f"an array on a device has no step {step}, expected 1")
                shape.append(max(stop - start, 0))
                strides.append(stride)
            else:
                start = range(n)[part]  # raises IndexError; negative ones count from the end
            offset += start * stride
        return self._view(tuple(shape), tuple(strides), offset)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.ops.assign(self[index], value)

    def copy(self) -> Tensor:
        """A C-contiguous copy."""
        return self.ops.copy(self)

    def astype(self, dtype: Any, copy: bool = True) -> Tensor:
        """The values in another float dtype; without `copy`, itself if it has that dtype."""
        if not copy and self.dtype == dtype:
            return self
        result = self.ops.empty(self.shape, dtype)
        self.ops.assign(result, self)
        return result

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    # ---- to the host ----

    def numpy(self) -> np.ndarray:
        """Wait for the array and copy it to host memory."""
        return self.ops.to_host(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on a device has no NumPy array without a copy")
        return self.numpy().astype(dtype or self.dtype, copy=False)


def _columns(index: Any) -> slice | None:
    """The part of the last axis alone that an index takes; None if it takes others."""
    if isinstance(index, tuple) and len(index) == 2 and index[0] is Ellipsis and isinstance(index[1], slice):
        return index[1]
    return None


def _without_ellipsis(index: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """An index with whole axes in place of an ellipsis."""
    at = next((i for i, part in enumerate(index) if part is Ellipsis), None)
    if at is None:
        return index
    return (*index[:at], *[slice(None)] * (ndim - len(index) + 1), *index[at + 1 :])


def _with_size(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """A shape whose -1 is replaced by what `size` elements need. ValueError if they do not fit."""
    known = prod(n for n in shape if n != -1)
    sizes = tuple(size // max(known, 1) if n == -1 else n for n in shape)
    if prod(sizes) != size:
        raise ValueError(f"reshape: shape has value {tuple(shape)}, expected one of {size} elements")
    return sizes


def dense_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The strides of a C-contiguous array, in bytes."""
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))
