"""Formats of blocks of 256 values that are vectors of a codebook: iq1, iq2 and iq3.

A vector has 4 values (iq3) or 8. A sub-block of 16 or 32 values has a scale of three or four bits, s, and is
multiplied by 2 s + 1 steps. The vectors of iq2 and iq3 are positive, and each value has a sign. In formats
with seven bits for eight signs, the number of negative values is even. In iq1 an eighth of a step is added
to all values of a vector or a sub-block, or subtracted.
"""

from __future__ import annotations

import numpy as np

from airllm.formats.bits import fields, half_at, nibbles, scale_sub_blocks
from airllm.formats.codebooks import CODEBOOKS

_VECTORS = {name: book.vectors() for name, book in CODEBOOKS.items()}
# All eight sign bits, from the seven that are stored: the last one makes their number even.
EIGHT_SIGNS = np.array([bits | bits.bit_count() % 2 << 7 for bits in range(128)], np.uint8)


def _values(book: str, index: np.ndarray) -> np.ndarray:
    return _VECTORS[book][index].reshape(len(index), -1)


def _with_signs(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The values (n, 256), negative where one of the bits (n, 32 bytes) is 1."""
    negative = np.unpackbits(signs, axis=1, bitorder="little").view(np.int8)
    return values * (1 - 2 * negative)


def _scaled(step: np.ndarray, scales: np.ndarray, values: np.ndarray) -> np.ndarray:
    return scale_sub_blocks(step * (2 * scales + np.uint8(1)), values.astype(np.float32))


def _scales_and_signs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A word for each 32 values: four times seven bits of signs, and a scale of four bits."""
    words = packed.view("<u4")
    signs = words[:, :, None] >> np.array((0, 7, 14, 21), np.uint32) & np.uint32(127)
    return (words >> np.uint32(28)).astype(np.uint8), EIGHT_SIGNS[signs].reshape(len(packed), -1)


def unpack_iq2_xxs(b: np.ndarray) -> np.ndarray:
    index, packed = np.split(b[:, 2:].reshape(-1, 8, 8), 2, axis=2)
    scales, signs = _scales_and_signs(packed.reshape(len(b), -1))
    values = _with_signs(_values("iq2_xxs", index), signs)
    return _scaled(half_at(b, 0) / np.float32(8), scales, values)


def unpack_iq2_xs(b: np.ndarray) -> np.ndarray:
    packed = b[:, 2:66].view("<u2")
    values = _with_signs(_values("iq2_xs", packed & 511), EIGHT_SIGNS[packed >> 9])
    return _scaled(half_at(b, 0) / np.float32(8), nibbles(b[:, 66:], 1), values)


def unpack_iq2_s(b: np.ndarray) -> np.ndarray:
    index = b[:, 2:34] | fields(b[:, 66:74], 1, 0, 2, 4, 6, mask=3).astype(np.uint16) << 8
    values = _with_signs(_values("iq2_s", index), b[:, 34:66])
    return _scaled(half_at(b, 0) / np.float32(8), nibbles(b[:, 74:], 1), values)


def unpack_iq3_xxs(b: np.ndarray) -> np.ndarray:
    scales, signs = _scales_and_signs(b[:, 66:])
    values = _with_signs(_values("iq3_xxs", b[:, 2:66]), signs)
    return _scaled(half_at(b, 0) / np.float32(4), scales, values)


def unpack_iq3_s(b: np.ndarray) -> np.ndarray:
    index = b[:, 2:66] | fields(b[:, 66:74], 1, *range(8), mask=1).astype(np.uint16) << 8
    values = _with_signs(_values("iq3_s", index), b[:, 74:106])
    return _scaled(half_at(b, 0), nibbles(b[:, 106:], 1), values)


def _with_offsets(book: str, index: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Vectors of iq1, one eighth less or more."""
    return (_VECTORS[book][index] + np.where(negative, -1, 1)[:, :, None]).reshape(len(index), -1)


def unpack_iq1_s(b: np.ndarray) -> np.ndarray:
    """A word for each 32 values: the upper three bits of four indices, a scale, the sign of the offset."""
    words = b[:, 34:].view("<u2")
    upper = words[:, :, None] >> np.array((0, 3, 6, 9), np.uint16) & np.uint16(7)
    index = b[:, 2:34] | upper.reshape(len(b), -1) << 8
    values = _with_offsets("iq1", index, np.repeat(words >> 15, 4, axis=1))
    return _scaled(half_at(b, 0) / np.float32(8), (words >> 12 & 7).astype(np.uint8), values)


def unpack_iq1_m(b: np.ndarray) -> np.ndarray:
    """Four words have four scales each, and in their upper bits a nibble of the block's float16."""
    words = b[:, 48:].view("<u2")
    scales = (words[:, :, None] >> np.array((0, 3, 6, 9), np.uint16) & np.uint16(7)).astype(np.uint8)
    halves = words >> 12 << np.array((0, 4, 8, 12), np.uint16)
    step = np.bitwise_or.reduce(halves, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    upper = nibbles(b[:, 32:48], 1)
    values = _with_offsets("iq1", b[:, :32] | (upper & 7).astype(np.uint16) << 8, upper >> 3)
    return _scaled(step / np.float32(8), scales.reshape(len(b), -1), values)
