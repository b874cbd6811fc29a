"""Fields of bits in stored blocks, and the float16 numbers beside them."""

from __future__ import annotations

import numpy as np


def half_at(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block, as a float32 column."""
    return blocks[:, at : at + 2].view(np.float16).astype(np.float32)


def fields(packed: np.ndarray, run: int, *shifts: int, mask: int) -> np.ndarray:
    """Bit fields of each `run` bytes: all values of the first shift, then all of the next."""
    runs = packed.reshape(len(packed), -1, 1, run)
    return (runs >> np.array(shifts, np.uint8)[:, None] & np.uint8(mask)).reshape(len(packed), -1)


def nibbles(packed: np.ndarray, run: int = 16) -> np.ndarray:
    return fields(packed, run, 0, 4, mask=15)


def fifth_bits(packed: np.ndarray) -> np.ndarray:
    """The fifth bits of 32 values: bit j, as 16 or 0, for value j."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def subtract_zero(fields: np.ndarray, zero: int) -> np.ndarray:
    return (fields.view(np.int8) - np.int8(zero)).astype(np.float32)


def scale_sub_blocks(scales: np.ndarray, q: np.ndarray) -> np.ndarray:
    """q (n, 256) times a scale for each sub-block (n, sub-blocks)."""
    n, subs = scales.shape
    return (scales[:, :, None] * q.reshape(n, subs, -1)).reshape(n, -1)


def as_half(column: np.ndarray) -> np.ndarray:
    return column.astype(np.float16).view(np.uint8)


def half_or_nan(scale: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The scales of blocks x; NaN for a block with a number that is not finite, which searches ignore."""
    finite = np.isfinite(x).all(axis=1, keepdims=True) & ~np.isnan(scale)
    return as_half(np.where(finite, scale, np.float32(np.nan)))


def reciprocal(scale: np.ndarray) -> np.ndarray:
    return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def round_to(values: np.ndarray, most: int) -> np.ndarray:
    """Positive numbers rounded down to integers of at most `most`."""
    return np.trunc(values).astype(np.uint8).clip(0, most)


def pack_nibbles(q: np.ndarray) -> np.ndarray:
    return q[:, :16] & np.uint8(15) | q[:, 16:] << np.uint8(4)


def pack_fifth_bits(q: np.ndarray) -> np.ndarray:
    return np.packbits(q >> np.uint8(4), axis=1, bitorder="little")


def join_fields(q: np.ndarray, run: int, *shifts: int) -> np.ndarray:
    """The reverse of `fields`: q (n, values) of few bits each as bytes."""
    runs = q.reshape(len(q), -1, len(shifts), run) << np.array(shifts, np.uint8)[:, None]
    return np.bitwise_or.reduce(runs, axis=2).reshape(len(q), -1)


def join_nibbles(q: np.ndarray, run: int = 16) -> np.ndarray:
    return join_fields(q, run, 0, 4)
