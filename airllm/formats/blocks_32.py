"""Formats of blocks of 32 values: a scale, in some an offset, and a code for each value.

Scale and offset are float16. mxfp4 has a power of two as its scale.
"""

from __future__ import annotations

import numpy as np

from airllm.formats.bits import (
    as_half,
    fifth_bits,
    half_at,
    half_or_nan,
    join_nibbles,
    nibbles,
    pack_fifth_bits,
    pack_nibbles,
    reciprocal,
    round_to,
    subtract_zero,
)
from airllm.formats.scale_search import largest_of, search_scale


def unpack_q8_0(b: np.ndarray) -> np.ndarray:
    return half_at(b, 0) * b[:, 2:].view(np.int8)


def unpack_q4_0(b: np.ndarray) -> np.ndarray:
    return half_at(b, 0) * subtract_zero(nibbles(b[:, 2:]), 8)


def unpack_q4_1(b: np.ndarray) -> np.ndarray:
    return half_at(b, 0) * nibbles(b[:, 4:]) + half_at(b, 2)


def unpack_q5_0(b: np.ndarray) -> np.ndarray:
    return half_at(b, 0) * subtract_zero(nibbles(b[:, 6:]) | fifth_bits(b[:, 2:6]), 16)


def unpack_q5_1(b: np.ndarray) -> np.ndarray:
    return half_at(b, 0) * (nibbles(b[:, 8:]) | fifth_bits(b[:, 4:8])) + half_at(b, 2)


IQ4_NL_VALUES = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32
)


def unpack_iq4_nl(b: np.ndarray) -> np.ndarray:
    return half_at(b, 0) * IQ4_NL_VALUES[nibbles(b[:, 2:])]


# The values of FP4 (E2M1), doubled. ggml decodes the negative zero, code 8, as zero.
FP4_VALUES = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.float32)


def unpack_mxfp4(b: np.ndarray) -> np.ndarray:
    """OCP microscaling: the scale is 2^(e - 127), halved here since the values are doubled. 255 is no NaN."""
    return np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128) * FP4_VALUES[nibbles(b[:, 1:])]


def _scale_symmetric(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The scale that maps the value of largest magnitude to the smallest integer, and the integers."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
    zero = (most + 1) // 2
    scale = largest / np.float32(-zero)
    return as_half(scale), round_to(x * reciprocal(scale) + np.float32(zero + 0.5), most)


def _scale_with_offset(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The scale and offset that map the values to 0 ... `most`, and the integers."""
    least = x.min(axis=1, keepdims=True)
    scale = (x.max(axis=1, keepdims=True) - least) / np.float32(most)
    q = round_to((x - least) * reciprocal(scale) + np.float32(0.5), most)
    return np.hstack([as_half(scale), as_half(least)]), q


def pack_q8_0(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * reciprocal(scale)
    size = np.abs(scaled)
    whole = np.floor(size)
    rounded = whole + np.floor(np.float32(2) * (size - whole))  # round half away from zero
    return np.hstack([as_half(scale), (np.sign(scaled) * rounded).astype(np.int8).view(np.uint8)])


def pack_q4_0(x: np.ndarray) -> np.ndarray:
    head, q = _scale_symmetric(x, 15)
    return np.hstack([head, pack_nibbles(q)])


def pack_q4_1(x: np.ndarray) -> np.ndarray:
    head, q = _scale_with_offset(x, 15)
    return np.hstack([head, pack_nibbles(q)])


def pack_q5_0(x: np.ndarray) -> np.ndarray:
    head, q = _scale_symmetric(x, 31)
    return np.hstack([head, pack_fifth_bits(q), pack_nibbles(q)])


def pack_q5_1(x: np.ndarray) -> np.ndarray:
    head, q = _scale_with_offset(x, 31)
    return np.hstack([head, pack_fifth_bits(q), pack_nibbles(q)])


_BETWEEN = (IQ4_NL_VALUES[1:] + IQ4_NL_VALUES[:-1]) / 2


def nearest_iq4_nl(x: np.ndarray) -> np.ndarray:
    """The codes of the nearest values; of two that are as near, the greater one."""
    return np.searchsorted(_BETWEEN, x, side="right").astype(np.uint8)


def search_iq4_nl(x: np.ndarray) -> np.ndarray:
    """The scale of each sub-block, a column of x: one that maps the largest magnitude to near 127, of either
    sign.
    """
    largest, zero = largest_of(x)
    weights, end = x * x, IQ4_NL_VALUES[0]
    scale, _ = search_scale(
        x,
        [np.float32(1) / (-largest / end), *((np.float32(i) + end) / largest for i in range(-7, 8))],
        lambda scaled: IQ4_NL_VALUES[nearest_iq4_nl(scaled)],
        lambda q: (weights * q * x, weights * q * q),
    )
    return np.where(zero, np.float32(0), scale)


def pack_iq4_nl(x: np.ndarray) -> np.ndarray:
    scale = search_iq4_nl(np.ascontiguousarray(x.T))[:, None]
    return np.hstack([half_or_nan(scale, x), join_nibbles(nearest_iq4_nl(x * reciprocal(scale)))])


def pack_mxfp4(x: np.ndarray) -> np.ndarray:
    """The largest magnitude, rounded down to a power of two, becomes 4; more than 6 is cut. A NaN becomes 0,
    and an infinity the largest number.

    ggml takes a float32 logarithm, which rounds up just below a power of two.
    """
    x = np.nan_to_num(x)
    largest = np.abs(x).max(axis=1, keepdims=True).astype(np.float64)
    power = np.floor(np.log2(largest).astype(np.float32))
    exponent = np.where(largest > 0, power + np.float32(125), np.float32(0)).astype(np.int32) & 255
    errors = np.abs(FP4_VALUES[:, None, None] * np.ldexp(np.float32(1), exponent - 128) - x)
    return np.hstack([exponent.astype(np.uint8), join_nibbles(errors.argmin(axis=0).astype(np.uint8))])
