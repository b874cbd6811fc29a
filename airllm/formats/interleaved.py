"""Weights in the order in which SIMD kernels read them.

A band is 16 rows of a weight (n, k). Its bytes are those of its blocks, in another order: what a kernel loads
for the 16 rows is contiguous, so that each row has a lane of a vector. A block has some whole words of 32
bits; the rest of it, before or after them, are 16-bit numbers, or one byte. A group of blocks has its words
first: for each block, for each of its words, that word of each row. Then it has the rest of its blocks in the
same way. A group has as many blocks as make its rest whole lines of 64 bytes; the last one of a band may have
fewer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airllm.formats.quantized import Quantized
from airllm.formats.table import FORMATS

BAND = 16  # rows


@dataclass(frozen=True)
class Words:
    """Where the words of a block are: `count` of them, from this byte on; `order`: those of a band."""

    first: int
    count: int
    order: tuple[int, ...] = ()  # if it is another one

    def places(self) -> np.ndarray:
        """The number of the word at each place of a band."""
        return np.array(self.order or range(self.count))


def _split(low: range, high: range, scales: range, halves: int = 1) -> tuple[int, ...]:
    """Words in the order of their first use: scales, then each word with low bits with that of its high bits.

    In each half the other words with low bits, which need the same eight words with high bits, come last.
    """
    order = list(scales)
    each = len(low) // halves
    for half in range(halves):
        some, beside = low[each * half : each * (half + 1)], high[8 * half : 8 * (half + 1)]
        order += [word for pair in zip(some[:8], beside, strict=True) for word in pair] + list(some[8:])
    return tuple(order)


# The other formats have codebooks, or digits of three, and are multiplied as stored.
WORDS = {
    "q8_0": Words(2, 8),
    "q4_0": Words(2, 4),
    "q4_1": Words(4, 4),
    "q5_0": Words(2, 5),
    "q5_1": Words(4, 5),
    "q2_k": Words(0, 20),
    "q3_k": Words(0, 27, _split(range(8, 24), range(8), range(24, 27))),
    "q4_k": Words(4, 35),
    "q5_k": Words(4, 43, _split(range(11, 43), range(3, 11), range(3))),
    "q6_k": Words(0, 52, _split(range(32), range(32, 48), range(48, 52), halves=2)),
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
            raise ValueError(
                f"Interleaved: data has shape {stored.shape} in {self.format}, expected {expected}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(n, k)."""
        of = FORMATS[self.format]
        return len(self.data), self.data.shape[1] // of.bytes * of.values

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
        data = np.empty_like(self.data)
        data.reshape(-1, data.shape[1] * BAND)[:, _places(self.format, self.data.shape[1])] = (
            self.data.reshape(-1, data.shape[1] * BAND)
        )
        return Quantized(data, self.format)

    def dequantize(self) -> np.ndarray:
        """The values, float32 (n, k), by the definition."""
        return self.stored().dequantize()


def can_interleave(weight: Quantized) -> bool:
    """Whether the weight is a matrix that can be interleaved."""
    return weight.ndim == 2 and weight.format in WORDS and len(weight) > 0 and len(weight) % BAND == 0


def interleave(weight: Quantized) -> Interleaved:
    """The weight in interleaved order, a copy: the definition of `tensor_ops_cpp.interleave`."""
    stored = weight.data.reshape(len(weight) // BAND, -1)
    data = stored[:, _places(weight.format, weight.data.shape[1])]
    return Interleaved(data.reshape(weight.data.shape), weight.format)


def _places(format: str, row: int) -> np.ndarray:
    """For each byte of a band of rows of `row` bytes: its place in those rows as stored."""
    words, of = WORDS[format], FORMATS[format]
    rest = of.bytes - 4 * words.count
    width = 1 if rest % 2 else 2
    first_of_rest = 0 if words.first else 4 * words.count
    starts = np.arange(0, row, of.bytes)
    groups = np.split(starts, range(4 // rest, len(starts), 4 // rest))
    return np.concatenate(
        [
            piece
            for group in groups
            for piece in (
                _gather(group, words.first + 4 * words.places(), row, 4),
                _gather(group, first_of_rest + np.arange(0, rest, width), row, width),
            )
        ]
    )


def _gather(blocks: np.ndarray, pieces: np.ndarray, row: int, width: int) -> np.ndarray:
    """The places of the bytes of some pieces of each block, of each row of a band."""
    rows, each = row * np.arange(BAND), np.arange(width)
    return (blocks[:, None, None, None] + pieces[:, None, None] + rows[:, None] + each).reshape(-1)
