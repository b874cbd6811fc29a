"""The quantizers of blocks of 256 values: the same bytes as ggml's, which also searches for good scales.

First each sub-block gets a scale of its own (and an offset). Then these are rounded to integers of a few
bits, times the block's float16 scale. Last, each value is rounded to what these rounded scales allow.
"""

from __future__ import annotations

import numpy as np

from airllm.formats.bits import as_half, half_at, half_or_nan, join_fields, join_nibbles
from airllm.formats.blocks_32 import nearest_iq4_nl, search_iq4_nl
from airllm.formats.scale_search import (
    LEAST,
    add_rows,
    nearest,
    nearest_in,
    search_one_by_one,
    search_symmetric,
    search_with_offset,
)

_NONE = np.zeros(1, np.float32)


def _columns(x: np.ndarray, size: int) -> np.ndarray:
    """Blocks (n, 256) as columns of sub-blocks (size, n * 256 / size)."""
    return np.ascontiguousarray(x.reshape(-1, size).T)


def _codes(columns: np.ndarray) -> np.ndarray:
    """The codes of all blocks (n, 256), uint8, from columns of sub-blocks."""
    return columns.T.reshape(-1, 256).astype(np.uint8)


def _rounded_again(
    x: np.ndarray, q: np.ndarray, scales: np.ndarray, least: int, most: int, offsets: np.ndarray = _NONE
) -> np.ndarray:
    """q of x = scale q - offset by the rounded scales (n, sub-blocks). Where a scale is 0, q stays."""
    scale = scales.reshape(-1)
    rounded = nearest_in((x + offsets.reshape(-1)) / scale, least, most)
    return np.where(scale == 0, q, rounded)


def _step(scales: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The step of which the largest scale is `most`, and its inverse; zeros if no scale is positive."""
    largest = scales.max(axis=1, keepdims=True)
    largest = np.where(largest > 0, largest, np.float32(0))
    inverse = np.where(largest > 0, np.float32(most) / largest, np.float32(0))
    return largest / np.float32(most), inverse


def _pack_with_offsets(
    x: np.ndarray, size: int, most: int, most_scale: int, first: float, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Halves (n, 4), scales and offsets (n, sub-blocks) as integers, and codes (n, 256)."""
    columns = _columns(x, size)
    weights = np.abs(columns)
    if size == 32:
        weights += np.sqrt(add_rows(columns * columns) / np.float32(32))
    scales, offsets, q = search_with_offset(columns, weights, most, first, steps, absolute=size == 16)
    scales, offsets = scales.reshape(len(x), -1), offsets.reshape(len(x), -1)
    step, by = _step(scales, most_scale)
    offset_step, offset_by = _step(offsets, most_scale)
    scales, offsets = (
        np.minimum(nearest(each) & 255, most_scale).astype(np.uint8)
        for each in (by * scales, offset_by * offsets)
    )
    halves = np.hstack([half_or_nan(step, x), as_half(offset_step)])
    q = _rounded_again(columns, q, half_at(halves, 0) * scales, 0, most, offsets=half_at(halves, 2) * offsets)
    return halves, scales, offsets, _codes(q)


def pack_q2_k(x: np.ndarray) -> np.ndarray:
    halves, scales, offsets, q = _pack_with_offsets(x, 16, 3, 15, -0.5, 15)
    return np.hstack([scales | offsets << np.uint8(4), join_fields(q, 32, 0, 2, 4, 6), halves])


def _six_bits(scales: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Eight scales and offsets of six bits: those of the last four are split."""
    lower, upper = np.uint8(15), np.uint8(4)
    first, last = np.hstack([scales[:, :4], offsets[:, :4]]), np.hstack([scales[:, 4:], offsets[:, 4:]])
    rest = scales[:, 4:] & lower | (offsets[:, 4:] & lower) << upper
    return np.hstack([first | last >> upper << np.uint8(6), rest])


def pack_q4_k(x: np.ndarray) -> np.ndarray:
    halves, scales, offsets, q = _pack_with_offsets(x, 32, 15, 63, -1, 20)
    return np.hstack([halves, _six_bits(scales, offsets), join_nibbles(q, 32)])


def pack_q5_k(x: np.ndarray) -> np.ndarray:
    halves, scales, offsets, q = _pack_with_offsets(x, 32, 31, 63, -0.5, 15)
    fifth = join_fields(q >> np.uint8(4), 32, *range(8))
    return np.hstack([halves, _six_bits(scales, offsets), fifth, join_nibbles(q & np.uint8(15), 32)])


def _signed_scales(
    x: np.ndarray, scales: np.ndarray, most: int, least: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The float16 step of which the scale of largest magnitude is -most; all scales as integers below `most`;
    and whether the block is zero because no scale is larger than `least`.
    """
    largest = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)
    zero = np.abs(largest) <= least
    inverse = np.where(zero, np.float32(0), np.float32(-most) / largest)
    step = np.where(zero, np.float32(0), np.float32(1) / inverse)
    return half_or_nan(step, x), nearest(inverse * scales).clip(-most, most - 1), zero


def pack_q3_k(x: np.ndarray) -> np.ndarray:
    columns = _columns(x, 16)
    found, q = search_one_by_one(columns, 4)
    step, scales, zero = _signed_scales(x, found.reshape(len(x), -1), 32, 0)
    q = _codes(_rounded_again(columns, q, half_at(step, 0) * scales.astype(np.float32), -4, 3) + 4)
    codes = np.where(zero, 0, scales + 32).astype(np.uint8)
    return np.hstack(
        [
            join_fields(q >> np.uint8(2), 32, *range(8)),
            join_fields(q & np.uint8(3), 32, 0, 2, 4, 6),
            join_nibbles(codes & np.uint8(15), 8),
            join_fields(codes >> np.uint8(4), 4, 0, 2, 4, 6),
            step,
        ]
    )


def pack_q6_k(x: np.ndarray) -> np.ndarray:
    columns = _columns(x, 16)
    found, q = search_symmetric(columns, 32)
    step, scales, zero = _signed_scales(x, found.reshape(len(x), -1), 128, LEAST)
    q = _codes(_rounded_again(columns, q, half_at(step, 0) * scales.astype(np.float32), -32, 31) + 32)
    q = np.where(zero, np.uint8(0), q)
    return np.hstack(
        [
            join_nibbles(q & np.uint8(15), 64),
            join_fields(q >> np.uint8(4), 32, 0, 2, 4, 6),
            scales.astype(np.int8).view(np.uint8),
            step,
        ]
    )


def pack_iq4_xs(x: np.ndarray) -> np.ndarray:
    columns = _columns(x, 32)
    found = search_iq4_nl(columns).reshape(len(x), -1)
    largest = np.take_along_axis(found, np.abs(found).argmax(axis=1)[:, None], axis=1)
    step = -largest / np.float32(32)
    inverse = np.where(step == 0, np.float32(0), np.float32(1) / step)
    scales = nearest(inverse * found).clip(-32, 31)
    by = (step * scales.astype(np.float32)).reshape(-1)
    q = _codes(nearest_iq4_nl(np.where(by == 0, np.float32(0), np.float32(1) / by) * columns))
    codes = (scales + 32).astype(np.uint8)
    low, high = join_nibbles(codes & np.uint8(15), 1), join_fields(codes >> np.uint8(4), 1, 0, 2, 4, 6)
    return np.hstack([half_or_nan(step, x), high, low, join_nibbles(q, 16)])
