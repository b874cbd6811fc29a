"""The formats in which weights are stored: ggml's blocks of quantized values.

A block holds `values` neighbours along a row in `bytes` bytes. Bit for bit as ggml lays them out (the
reference is its Python package `gguf`).
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """A block format: how many values a block holds, in how many bytes, and ggml's number for it."""

    name: str
    values: int
    bytes: int
    ggml_type: int


FORMATS = {
    f.name: f
    for f in (
        Format("q8_0", 32, 34, 8),
        Format("q4_0", 32, 18, 2),
        Format("q4_1", 32, 20, 3),
        Format("q5_0", 32, 22, 6),
        Format("q5_1", 32, 24, 7),
        Format("q2_k", 256, 84, 10),
        Format("q3_k", 256, 110, 11),
        Format("q4_k", 256, 144, 12),
        Format("q5_k", 256, 176, 13),
        Format("q6_k", 256, 210, 14),
        Format("iq4_nl", 32, 18, 20),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """An array (..., k) stored as blocks: uint8 `data` (..., k / values * bytes), as mapped from a file."""

    data: np.ndarray
    format: str

    @property
    def shape(self) -> tuple[int, ...]:
        of = FORMATS[self.format]
        *lead, row = self.data.shape
        return (*lead, row // of.bytes * of.values)
