"""Weights in the order in which SIMD kernels read them.

A band is 16 rows of a weight (n, k). Its bytes are those of its blocks, in another order: what a kernel loads
for the 16 rows is contiguous, so that each row has a lane of a vector. A block has some whole words of 32
bits; the rest of it, before or after them, are 16-bit numbers, or one byte. A band has the words of all its
blocks first: for each block, for each of its words, that word of each row. Then it has the rest of all its
blocks in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airllm.formats.quantized import Quantized
from airllm.formats.table import FORMATS, format_named

BAND = 16  # rows


@dataclass(frozen=True)
class Words:
    """Where the words of a block are: `count` of them, from this byte on."""

    first: int
    count: int


# The other formats have codebooks, or digits of three, and are multiplied as stored.
WORDS = {
    "q8_0": Words(2, 8),
    "q4_0": Words(2, 4),
    "q4_1": Words(4, 4),
    "q5_0": Words(2, 5),
    "q5_1": Words(4, 5),
    "q2_k": Words(0, 20),
    "q3_k": Words(0, 27),
    "q4_k": Words(4, 35),
    "q5_k": Words(4, 43),
    "q6_k": Words(0, 52),
    "iq4_nl": Words(2, 4),
    "iq4_xs": Words(4, 33),
    "mxfp4": Words(1, 4),
    "tq2_0": Words(0, 16),
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Interleaved:
    """A weight (n, k): uint8 `data` (n, row_bytes), C-contiguous, n a multiple of 16.

    Raises TypeError if the data is no uint8 NumPy array, ValueError for a format that is not interleaved and
    for data of another shape.
    """

    data: np.ndarray
    format: str

    def __post_init__(self) -> None:
        stored = Quantized(self.data, self.format)
        object.__setattr__(self, "format", stored.format)
        if not can_interleave(stored):
            expected = f"a matrix of {BAND} rows, or a multiple of that, in one of {', '.join(WORDS)}"
            raise ValueError(f"Interleaved: data has shape {stored.shape} in {self.format}, expected {expected}")

    @property
    def shape(self) -> tuple[int, int]:
        """(n, k)."""
        of = FORMATS[self.format]
        return len(self.data), self.data.shape[1] // of.bytes * of.values

    @property
    def ndim(self) -> int:
        return 2

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return self.data.nbytes

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"<Interleaved {self.format} {self.shape}, {self.nbytes} bytes>"

    def stored(self) -> Quantized:
        """The weight as a file stores it, a copy."""
        words, rest, width = _views(self.format)
        of, bands = FORMATS[self.format], len(self.data) // BAND
        blocks = self.data.shape[1] // of.bytes
        each = self.data.reshape(bands, -1)
        of_words = each[:, : BAND * blocks * 4 * WORDS[self.format].count]
        of_rest = each[:, of_words.shape[1] :]
        found = np.empty((bands, BAND, blocks, of.bytes), np.uint8)
        found[..., words] = of_words.reshape(bands, blocks, -1, BAND, 4).transpose(0, 3, 1, 2, 4).reshape(
            bands, BAND, blocks, -1
        )
        found[..., rest] = of_rest.reshape(bands, blocks, -1, BAND, width).transpose(0, 3, 1, 2, 4).reshape(
            bands, BAND, blocks, -1
        )
        return Quantized(found.reshape(self.data.shape), self.format)

    def dequantize(self) -> np.ndarray:
        """The values, float32 (n, k), by the definition."""
        return self.stored().dequantize()


def can_interleave(weight: Quantized) -> bool:
    """Whether the weight is a matrix that can be interleaved."""
    return weight.ndim == 2 and weight.format in WORDS and len(weight) > 0 and len(weight) % BAND == 0


def interleave(weight: Quantized) -> Interleaved:
    """The weight in interleaved order, a copy: the definition of `tensor_ops_cpp.interleave`."""
    words, rest, width = _views(format_named(weight.format).name)
    of, n = FORMATS[weight.format], len(weight)
    blocks = weight.data.reshape(n // BAND, BAND, -1, of.bytes)

    def gather(part: slice, size: int) -> np.ndarray:
        pieces = blocks[..., part].reshape(*blocks.shape[:-1], -1, size)  # bands, rows, blocks, pieces, bytes
        return pieces.transpose(0, 2, 3, 1, 4).reshape(n // BAND, -1)

    data = np.concatenate([gather(words, 4), gather(rest, width)], axis=1)
    return Interleaved(data.reshape(weight.data.shape), weight.format)


def _views(format: str) -> tuple[slice, slice, int]:
    """The bytes of a block that are words, those that are not, and the bytes of a number of the latter."""
    first, count, all_bytes = WORDS[format].first, WORDS[format].count, FORMATS[format].bytes
    words = slice(first, first + 4 * count)
    rest = slice(0, first) if first else slice(words.stop, all_bytes)
    return words, rest, 1 if (all_bytes - 4 * count) % 2 else 2
