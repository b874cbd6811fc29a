"""An array stored as blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from airllm.formats.table import FORMATS, format_named
from airllm.ops.dlpack import device_of


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Quantized:
    """An array (..., k) stored as blocks: uint8 `data` (..., row_bytes), C-contiguous, as mapped from a file.

    The data may also be on a device, where a backend's `to_device` puts it.

    Raises TypeError if the data is no uint8 NumPy array, ValueError for an unknown format or for rows that
    are not whole blocks.
    """

    data: np.ndarray
    format: str

    def __post_init__(self) -> None:
        of = format_named(self.format)
        object.__setattr__(self, "format", of.name)
        on_device = bool(device_of(self.data))
        if not isinstance(self.data, np.ndarray) and not on_device:
            raise TypeError(f"Quantized: data has type {type(self.data).__name__}, expected a NumPy array")
        if str(self.data.dtype).removeprefix("torch.") != "uint8":
            raise TypeError(f"Quantized: data has dtype {self.data.dtype}, expected uint8")
        if self.data.ndim < 1 or self.data.shape[-1] % of.bytes:
            expected = f"(... row_bytes) with row_bytes a multiple of {of.bytes} for {of.name}"
            raise ValueError(f"Quantized: data has shape {self.data.shape}, expected {expected}")
        if not on_device and not self.data.flags.c_contiguous:  # a backend checks its own arrays
            expected = "C-contiguous (pass numpy.ascontiguousarray(data))"
            raise ValueError(f"Quantized: data has strides {self.data.strides}, expected {expected}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values: (..., k)."""
        of = FORMATS[self.format]
        *lead, row = self.data.shape
        return (*lead, row // of.bytes * of.values)

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def nbytes(self) -> int:
        """Bytes of the stored blocks."""
        return self.data.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Quantized {self.format} {self.shape}, {self.nbytes} bytes>"

    def __getitem__(self, index: Any) -> Quantized:
        """Index the leading axes. The last axis, which is blocks, stays whole.

        The result is a view if its rows are contiguous, else a copy.
        """
        index = index if isinstance(index, tuple) else (index,)
        rest = (slice(None),) if any(i is Ellipsis for i in index) else (..., slice(None))
        where = (*index, *rest)
        return Quantized(np.ascontiguousarray(self.data[where]), self.format)

    def dequantize(self) -> np.ndarray:
        """The values, float32 (..., k), by the definition. `tensor_ops.dequantize` is faster."""
        return FORMATS[self.format].decode(self.data)
