"""Stored weights in MLX's memory: formats that MLX's own can represent as those, others as float16.

A value of MLX's affine groups is scale * q + offset, with q of 2 to 8 bits. Scales and offsets are float32,
as the activations are: then every value is exactly that of the format, and no call converts them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from airllm.formats import FORMATS, Quantized
from airllm.formats.bits import fields, fifth_bits, half_at, nibbles
from airllm.formats.blocks_256 import scales_and_offsets, ternary_digits

_AT_ONCE = 1 << 22  # values that are converted at a time


@dataclass(frozen=True)
class Grouping:
    """How a format becomes MLX's groups of `group` values of `bits`: `split` converts blocks (n, bytes) to
    codes (n, values), and scales and offsets (n, groups). Without offsets, scales are powers of two, as bytes
    (`mode` "mxfp4").
    """

    bits: int
    group: int
    split: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray | None]]
    mode: str = "affine"


def _centred(scales: np.ndarray, codes: np.ndarray, zero: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return codes, scales, np.float32(-zero) * scales


def _q4_k(b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scales, offsets = scales_and_offsets(b)
    return nibbles(b[:, 16:], 32), scales, -offsets


def _q5_k(b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scales, offsets = scales_and_offsets(b)
    codes = nibbles(b[:, 48:], 32) | fields(b[:, 16:48], 32, *range(8), mask=1) << np.uint8(4)
    return codes, scales, -offsets


def _tq1_0(b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    runs = ((b[:, :32], 32, 5), (b[:, 32:48], 16, 5), (b[:, 48:52], 4, 4))
    digits = np.hstack([ternary_digits(*run) for run in runs])
    return _centred(np.repeat(half_at(b, 52), 2, axis=1), digits, 1)


def _tq2_0(b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    codes = fields(b[:, :64], 32, 0, 2, 4, 6, mask=3)
    return _centred(np.repeat(half_at(b, 64), 2, axis=1), codes, 1)


GROUPINGS: Mapping[str, Grouping] = {
    "q8_0": Grouping(8, 32, lambda b: _centred(half_at(b, 0), b[:, 2:] ^ np.uint8(128), 128)),
    "q4_0": Grouping(4, 32, lambda b: _centred(half_at(b, 0), nibbles(b[:, 2:]), 8)),
    "q4_1": Grouping(4, 32, lambda b: (nibbles(b[:, 4:]), half_at(b, 0), half_at(b, 2))),
    "q5_0": Grouping(5, 32, lambda b: _centred(half_at(b, 0), nibbles(b[:, 6:]) | fifth_bits(b[:, 2:6]), 16)),
    "q5_1": Grouping(
        5, 32, lambda b: (nibbles(b[:, 8:]) | fifth_bits(b[:, 4:8]), half_at(b, 0), half_at(b, 2))
    ),
    "q4_k": Grouping(4, 32, _q4_k),
    "q5_k": Grouping(5, 32, _q5_k),
    "mxfp4": Grouping(4, 32, lambda b: (nibbles(b[:, 1:]), b[:, :1], None), mode="mxfp4"),
    "tq1_0": Grouping(2, 128, _tq1_0),
    "tq2_0": Grouping(2, 128, _tq2_0),
}


@dataclass(frozen=True)
class Groups:
    """A matrix, or one for each expert, in MLX's groups: `shape` is that of its values. `arrays` has codes,
    scales, and offsets if there are any. `kept` counts their bytes.
    """

    arrays: tuple[mx.array, ...]
    of: Grouping
    shape: tuple[int, ...]
    kept: Any = None

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.arrays)

    @property
    def parts(self) -> tuple[mx.array, mx.array, mx.array | None]:
        """Codes, scales, and offsets or None."""
        offsets = self.arrays[2] if self.of.mode == "affine" else None
        return self.arrays[0], self.arrays[1], offsets

    @property
    def options(self) -> Any:
        """The options of MLX's functions."""
        return {"group_size": self.of.group, "bits": self.of.bits, "mode": self.of.mode}

    def __getitem__(self, rows: Any) -> "Groups":
        """Some rows, or some experts."""
        arrays = tuple(each[rows] for each in self.arrays)
        return Groups(arrays, self.of, (*arrays[0].shape[:-1], self.shape[-1]), self.kept)

    def reshape(self, shape: tuple[int, ...]) -> "Groups":
        """With other leading axes."""
        arrays = tuple(each.reshape(*shape[:-1], each.shape[-1]) for each in self.arrays)
        return Groups(arrays, self.of, shape, self.kept)

    def values(self) -> mx.array:
        """The values, float32."""
        of = self.of
        return mx.dequantize(*self.parts, of.group, of.bits, of.mode, dtype=mx.float32)


def hold(stored: Quantized) -> "Groups | mx.array":
    """Stored weights (..., k) in MLX's memory: groups, or float16 values if MLX has none for the format."""
    of = GROUPINGS.get(stored.format)
    data = stored.data.reshape(-1, stored.data.shape[-1])
    step = max(1, _AT_ONCE // max(stored.shape[-1], 1))
    pieces = [data[at : at + step] for at in range(0, len(data), step)] or [data]
    if of is None:
        return _decoded(stored, pieces, np.float16)
    if of.mode == "mxfp4" and _has_large_scales(data):
        return _decoded(stored, pieces, np.float32)
    parts = zip(*(_split(piece, stored.format, of) for piece in pieces), strict=True)
    arrays = tuple(_joined(part) for part in parts if part[0] is not None)
    return Groups(arrays, of, data.shape).reshape(stored.shape)


def _decoded(stored: Quantized, pieces: Sequence[np.ndarray], dtype: Any) -> mx.array:
    values = [FORMATS[stored.format].decode(piece).astype(dtype) for piece in pieces]
    return _joined(values).reshape(stored.shape)


def _has_large_scales(data: np.ndarray) -> bool:
    """Whether a scale of mxfp4 has the exponent 255, which MLX understands as NaN."""
    return bool((data.reshape(-1, FORMATS["mxfp4"].bytes)[:, 0] == 255).any())


def _joined(pieces: Any) -> mx.array:
    return mx.array(np.concatenate(pieces))


def _split(data: np.ndarray, name: str, of: Grouping) -> tuple:
    """The arrays of rows of blocks."""
    with np.errstate(all="ignore"):  # an infinite scale times zero is NaN
        codes, scales, offsets = of.split(data.reshape(-1, FORMATS[name].bytes))
    words = _pack(codes.reshape(len(data), -1), of.bits)
    return words, *(None if each is None else each.reshape(len(data), -1) for each in (scales, offsets))


def _pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes (rows, k) as words of 32 bits, the first in the lowest bits."""
    if bits == 8:
        return np.ascontiguousarray(codes).view(np.uint32)
    eight = codes.reshape(len(codes), -1, 8).astype(np.uint64)
    joined = np.bitwise_or.reduce(eight << (bits * np.arange(8, dtype=np.uint64)), axis=-1)
    found = joined.astype("<u8").view(np.uint8).reshape(*joined.shape, 8)[..., :bits]
    return np.ascontiguousarray(found).reshape(len(codes), -1).view(np.uint32)
