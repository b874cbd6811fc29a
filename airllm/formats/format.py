"""What a format is: how its blocks become values, and values blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_AT_ONCE = 1 << 12  # blocks per step, so that temporaries stay in the CPU caches


@dataclass(frozen=True)
class Format:
    """A block format: the number of values and bytes of a block, and ggml's number of the format.

    `unpack` converts blocks (n, bytes) to values (n, values). `pack`, if there is one, does the reverse; then
    `file_type` is ggml's number of a file mostly in this format. `halves`: the offsets in a block, in bytes,
    of its float16 values: the scale and possibly an offset. It is empty if the scale is no such value.
    """

    name: str
    values: int
    bytes: int
    ggml_type: int
    unpack: Callable[[np.ndarray], np.ndarray]
    pack: Callable[[np.ndarray], np.ndarray] | None = None
    file_type: int | None = None
    halves: tuple[int, ...] = (0,)

    def decode(self, data: np.ndarray) -> np.ndarray:
        """uint8 (..., row_bytes) -> float32 (..., k)."""
        out = np.empty((*data.shape[:-1], data.shape[-1] // self.bytes * self.values), np.float32)
        with np.errstate(all="ignore"):  # an infinite scale times zero is NaN, without a warning
            _apply_by_pieces(self.unpack, data.reshape(-1, self.bytes), out.reshape(-1, self.values))
        return out

    def encode(self, values: np.ndarray) -> np.ndarray:
        """float32 (..., k) -> uint8 (..., row_bytes). ValueError if this format has no quantizer."""
        if self.pack is None:
            raise ValueError(f"quantize: {self.name} has no quantizer")
        if values.ndim < 1 or values.shape[-1] % self.values:
            expected = f"(... k) with k a multiple of {self.values}"
            raise ValueError(f"quantize: x has shape {values.shape}, expected {expected}")
        blocks = np.ascontiguousarray(values, np.float32).reshape(-1, self.values)
        out = np.empty((*values.shape[:-1], values.shape[-1] // self.values * self.bytes), np.uint8)
        with np.errstate(all="ignore"):  # as in decode(): a NaN, or a scale too large for float16
            _apply_by_pieces(self.pack, blocks, out.reshape(-1, self.bytes))
        return out


def _apply_by_pieces(
    function: Callable[[np.ndarray], np.ndarray], blocks: np.ndarray, out: np.ndarray
) -> None:
    step = _AT_ONCE // max(blocks.shape[1], out.shape[1])
    for start in range(0, len(blocks), step):
        out[start : start + step] = function(blocks[start : start + step])
