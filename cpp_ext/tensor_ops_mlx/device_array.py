"""Arrays of a model on MLX's device, with the interface of `airllm.backends.device.tensor.Tensor`.

MLX's arrays have no views that can be written. So a view here is its base and a step to it; what is written
to a view goes back through the steps to the array that owns the values, which gets new ones. MLX computes
those in place if nothing else needs the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import mlx.core as mx
import numpy as np

from airllm.backends.device.numpy_protocols import NumPyProtocols
from airllm.backends.device.tensor import ResidentCounter

_METAL = 8  # DLPack's kDLMetal
_DTYPES = {mx.bfloat16: np.dtype(ml_dtypes.bfloat16)}


def numpy_dtype(array: mx.array) -> np.dtype:
    """The dtype as NumPy has it."""
    if array.dtype not in _DTYPES:
        _DTYPES[array.dtype] = np.dtype(str(array.dtype).rpartition(".")[2])
    return _DTYPES[array.dtype]


def mlx_dtype(dtype: Any) -> mx.Dtype:
    """The dtype as MLX has it."""
    return getattr(mx, np.dtype(dtype).name)


class Kept:
    """Counts the bytes of an array that stays, until nothing refers to it."""

    def __init__(self, nbytes: int, counters: ResidentCounter):
        self._nbytes, self._counters = nbytes, counters
        counters.add(resident=nbytes)

    def __del__(self) -> None:
        self._counters.add(resident=-self._nbytes)


class _Step(NamedTuple):
    """From a base to a view: `read` makes it, `write` gives the base with other values in it."""

    read: Callable[[mx.array], mx.array]
    write: Callable[[mx.array, mx.array], mx.array]


class Array(NumPyProtocols):
    """An array on the device, or a view of one."""

    __slots__ = ("__weakref__", "_base", "_step", "_value", "kept", "ops", "version")

    def __init__(self, ops: Any, value: mx.array | None, base: Array | None = None, step: Any = None):
        self.ops, self._value, self._base, self._step = ops, value, base, step
        self.kept: Kept | None = None
        self.version = 0  # how often its values have changed

    @property
    def value(self) -> mx.array:
        """The values as an array of MLX, perhaps not computed yet."""
        if self._base is not None:
            return self._step.read(self._base.value)
        assert self._value is not None, "a root has a value"
        return self._value

    def write(self, value: mx.array) -> None:
        """Have these values, of its shape and dtype, from now on."""
        if self._base is None:
            self._value = value
            self.version += 1
        else:
            self._base.write(self._step.write(self._base.value, value))

    @property
    def is_root(self) -> bool:
        """Whether it owns its values."""
        return self._base is None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> np.dtype:
        return numpy_dtype(self.value)

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def nbytes(self) -> int:
        return self.value.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Array {self.dtype} {self.shape} on {self.ops.device()}>"

    def __dlpack_device__(self) -> tuple[int, int]:
        return _METAL, 0

    # ---- views ----

    def _view(self, read: Callable, write: Callable) -> Array:
        return Array(self.ops, None, self, _Step(read, write))

    def reshape(self, *shape: Any) -> Array:
        """The same elements in another shape; one axis may be -1."""
        sizes = shape if isinstance(shape[0], int) else tuple(shape[0])
        own = self.shape
        return self._view(lambda base: base.reshape(sizes), lambda base, new: new.reshape(own))

    def swapaxes(self, a: int, b: int) -> Array:
        """A view with two axes exchanged."""
        return self._view(lambda base: base.swapaxes(a, b), lambda base, new: new.swapaxes(a, b))

    def __getitem__(self, index: Any) -> Array:
        if isinstance(index, slice) and index.indices(len(self)) == (0, len(self), 1):
            return self

        def write(base: mx.array, new: mx.array) -> mx.array:
            base[index] = new
            return base

        return self._view(lambda base: base[index], write)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.ops.assign(self[index], value)

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def copy(self) -> Array:
        """A copy with values of its own."""
        return Array(self.ops, mx.array(self.value))

    def astype(self, dtype: Any, copy: bool = True) -> Array:
        """The values in another float dtype; without `copy`, itself if it has that dtype."""
        if not copy and self.dtype == dtype:
            return self
        return Array(self.ops, mx.array(self.value.astype(mlx_dtype(dtype))))

    # ---- to the host ----

    def numpy(self) -> np.ndarray:
        """Wait for the array and copy it to host memory."""
        return self.ops.to_host(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on a device has no NumPy array without a copy")
        return self.numpy().astype(dtype or self.dtype, copy=False)
