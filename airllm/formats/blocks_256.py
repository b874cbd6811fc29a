"""Formats of blocks of 256 values: the scales of sub-blocks of 16 or 32 are integers of a few bits."""

from __future__ import annotations

import numpy as np

from airllm.formats.bits import fields, half_at, nibbles, scale_sub_blocks, subtract_zero
from airllm.formats.blocks_32 import IQ4_NL_VALUES


def unpack_q2_k(b: np.ndarray) -> np.ndarray:
    q = fields(b[:, 16:80], 32, 0, 2, 4, 6, mask=3).astype(np.float32)
    scales, offsets = half_at(b, 80) * (b[:, :16] & 15), half_at(b, 82) * (b[:, :16] >> 4)
    return scale_sub_blocks(scales, q) - np.repeat(offsets, 16, axis=1)


def unpack_q3_k(b: np.ndarray) -> np.ndarray:
    high = fields(b[:, :32], 32, *range(8), mask=1) << np.uint8(2)
    q = subtract_zero(fields(b[:, 32:96], 32, 0, 2, 4, 6, mask=3) | high, 4)
    upper = fields(b[:, 104:108], 4, 0, 2, 4, 6, mask=3) << np.uint8(4)
    scales = subtract_zero(nibbles(b[:, 96:104], 8) | upper, 32)
    return scale_sub_blocks(half_at(b, 108) * scales, q)


def scales_and_offsets(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and offsets of the eight sub-blocks of q4_k and q5_k: six bits each, split for the last four."""
    scale, offset, rest = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = np.hstack([scale & 63, rest & 15 | scale >> 6 << 4])
    offsets = np.hstack([offset & 63, rest >> 4 | offset >> 6 << 4])
    return half_at(b, 0) * scales, half_at(b, 2) * offsets


def unpack_q4_k(b: np.ndarray) -> np.ndarray:
    scales, offsets = scales_and_offsets(b)
    return scale_sub_blocks(scales, nibbles(b[:, 16:], 32).astype(np.float32)) - np.repeat(
        offsets, 32, axis=1
    )


def unpack_q5_k(b: np.ndarray) -> np.ndarray:
    scales, offsets = scales_and_offsets(b)
    q = nibbles(b[:, 48:], 32) | fields(b[:, 16:48], 32, *range(8), mask=1) << np.uint8(4)
    return scale_sub_blocks(scales, q.astype(np.float32)) - np.repeat(offsets, 32, axis=1)


def unpack_q6_k(b: np.ndarray) -> np.ndarray:
    low = nibbles(b[:, :128], 64)
    high = fields(b[:, 128:192], 32, 0, 2, 4, 6, mask=3) << np.uint8(4)
    return scale_sub_blocks(half_at(b, 208) * b[:, 192:208].view(np.int8), subtract_zero(low | high, 32))


def unpack_iq4_xs(b: np.ndarray) -> np.ndarray:
    """The codes of iq4_nl. A scale has six bits; the upper two are stored separately."""
    upper = fields(b[:, 2:4], 1, 0, 2, 4, 6, mask=3) << np.uint8(4)
    scales = subtract_zero(nibbles(b[:, 4:8], 1) | upper, 32)
    return scale_sub_blocks(half_at(b, 0) * scales, IQ4_NL_VALUES[nibbles(b[:, 8:])])


def ternary_digits(packed: np.ndarray, run: int, count: int) -> np.ndarray:
    """Digits 0 to 2 of bytes, which are fractions of 256: the first digit of each `run` bytes, and so on."""
    powers = np.array((1, 3, 9, 27, 81)[:count], np.uint8)[:, None]
    moved = packed.reshape(len(packed), -1, 1, run) * powers  # an overflow removes the digits before
    return (moved.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(packed), -1)


def unpack_tq1_0(b: np.ndarray) -> np.ndarray:
    """Five digits in a byte, in the last four bytes only four."""
    runs = ((b[:, :32], 32, 5), (b[:, 32:48], 16, 5), (b[:, 48:52], 4, 4))
    return half_at(b, 52) * subtract_zero(np.hstack([ternary_digits(*run) for run in runs]), 1)


def unpack_tq2_0(b: np.ndarray) -> np.ndarray:
    return half_at(b, 64) * subtract_zero(fields(b[:, :64], 32, 0, 2, 4, 6, mask=3), 1)
