"""Arrays on a WebGPU device."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from tensor_ops_webgpu.engine import Block, Engine

_WEBGPU = 15  # DLPack's kDLWebGPU
_DENSE = SimpleNamespace(c_contiguous=True)


class Store:
    """The memory that an array shares with its reshapes. Writing a result replaces the block by a new one."""

    def __init__(self, block: Block):
        self.block = block


class Array:
    """A C-contiguous array on a WebGPU device, from `to_device` or from an op on such arrays.

    `numpy()` and numpy.asarray(array) copy it to the host.
    """

    flags = _DENSE

    def __init__(self, store: Store, dtype: Any, shape: tuple[int, ...]):
        self.store, self.dtype, self.shape = store, np.dtype(dtype), tuple(shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(self.dtype.itemsize * prod(self.shape[axis + 1 :]) for axis in range(self.ndim))

    @property
    def engine(self) -> Engine:
        return self.store.block.engine

    def numpy(self) -> np.ndarray:
        """Wait for the array and copy it to host memory."""
        out = np.empty(self.shape, self.dtype)
        if out.size:
            self.engine.download(self.store.block, out)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on a WebGPU device has no NumPy array without a copy")
        return self.numpy().astype(dtype or self.dtype, copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _WEBGPU, 0

    def reshape(self, *shape: Any) -> Array:
        """The same memory in another shape; one axis may be -1."""
        sizes = shape if not shape or isinstance(shape[0], int) else tuple(shape[0])
        of_shape = np.broadcast_to(np.int8(0), self.shape)
        return Array(self.store, self.dtype, of_shape.reshape(sizes).shape)

    def view(self, dtype: Any) -> Array:
        """The same bytes in another dtype of the same size."""
        if np.dtype(dtype).itemsize != self.dtype.itemsize:
            raise ValueError(f"view: dtype has {dtype}, expected one of {self.dtype.itemsize} bytes")
        return Array(self.store, dtype, self.shape)

    def __repr__(self) -> str:
        return f"<Array {self.dtype} {self.shape} on {self.engine.label}>"
