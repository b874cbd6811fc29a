"""The formats of stored weights: ggml's blocks of quantized values.

A block holds `values` consecutive values of a row in `bytes` bytes, little-endian, bit for bit as in ggml.
Its Python package `gguf` gives the same values and, if it can quantize, the same bytes. This NumPy code
defines the formats. A value is `scale * q`, or `scale * q + offset`, with q of a few bits. Blocks of 256
("K") have two levels: the scales of their sub-blocks of 16 or 32 are themselves integers of a few bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from airllm.ops.dlpack import device_of

_AT_ONCE = 1 << 12  # blocks per step, so that temporaries stay in the CPU caches


@dataclass(frozen=True)
class Format:
    """A block format: the number of values and bytes of a block, and ggml's number of the format.

    `unpack` converts blocks (n, bytes) to values (n, values). `pack`, if there is one, does the reverse; then
    `file_type` is ggml's number of a file mostly in this format. `halves`: the offsets in a block, in bytes,
    of its float16 values: the scale and possibly an offset.
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
            raise ValueError(f"quantize: format has value '{self.name}', expected one of {names(True)}")
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
    for start in range(0, len(blocks), _AT_ONCE):
        out[start : start + _AT_ONCE] = function(blocks[start : start + _AT_ONCE])


# ------------------------------------------------------------------------------------------------ unpacking


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block, as a float32 column."""
    return blocks[:, at : at + 2].view(np.float16).astype(np.float32)


def _fields(packed: np.ndarray, run: int, *shifts: int, mask: int) -> np.ndarray:
    """Bit fields of each `run` bytes: all values of the first shift, then all of the next."""
    runs = packed.reshape(len(packed), -1, 1, run)
    return (runs >> np.array(shifts, np.uint8)[:, None] & np.uint8(mask)).reshape(len(packed), -1)


def _nibbles(packed: np.ndarray, run: int = 16) -> np.ndarray:
    return _fields(packed, run, 0, 4, mask=15)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    """The fifth bits of 32 values: bit j, as 16 or 0, for value j."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _subtract_zero(fields: np.ndarray, zero: int) -> np.ndarray:
    return (fields.view(np.int8) - np.int8(zero)).astype(np.float32)


def _scale_sub_blocks(scales: np.ndarray, q: np.ndarray) -> np.ndarray:
    """q (n, 256) times a scale for each sub-block (n, sub-blocks)."""
    n, subs = scales.shape
    return (scales[:, :, None] * q.reshape(n, subs, -1)).reshape(n, -1)


def _q8_0(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * b[:, 2:].view(np.int8)


def _q4_0(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * _subtract_zero(_nibbles(b[:, 2:]), 8)


def _q4_1(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * _nibbles(b[:, 4:]) + _half(b, 2)


def _q5_0(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * _subtract_zero(_nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6]), 16)


def _q5_1(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * (_nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])) + _half(b, 2)


IQ4_NL_VALUES = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32
)


def _iq4_nl(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * IQ4_NL_VALUES[_nibbles(b[:, 2:])]


def _q2_k(b: np.ndarray) -> np.ndarray:
    q = _fields(b[:, 16:80], 32, 0, 2, 4, 6, mask=3).astype(np.float32)
    scales, offsets = _half(b, 80) * (b[:, :16] & 15), _half(b, 82) * (b[:, :16] >> 4)
    return _scale_sub_blocks(scales, q) - np.repeat(offsets, 16, axis=1)


def _q3_k(b: np.ndarray) -> np.ndarray:
    high = _fields(b[:, :32], 32, *range(8), mask=1) << np.uint8(2)
    q = _subtract_zero(_fields(b[:, 32:96], 32, 0, 2, 4, 6, mask=3) | high, 4)
    upper = _fields(b[:, 104:108], 4, 0, 2, 4, 6, mask=3) << np.uint8(4)
    scales = _subtract_zero(_nibbles(b[:, 96:104], 8) | upper, 32)
    return _scale_sub_blocks(_half(b, 108) * scales, q)


def _scales_and_offsets(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and offsets of the eight sub-blocks of q4_k and q5_k: six bits each, split for the last four."""
    scale, offset, rest = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = np.hstack([scale & 63, rest & 15 | scale >> 6 << 4])
    offsets = np.hstack([offset & 63, rest >> 4 | offset >> 6 << 4])
    return _half(b, 0) * scales, _half(b, 2) * offsets


def _q4_k(b: np.ndarray) -> np.ndarray:
    scales, offsets = _scales_and_offsets(b)
    return _scale_sub_blocks(scales, _nibbles(b[:, 16:], 32).astype(np.float32)) - np.repeat(
        offsets, 32, axis=1
    )


def _q5_k(b: np.ndarray) -> np.ndarray:
    scales, offsets = _scales_and_offsets(b)
    q = _nibbles(b[:, 48:], 32) | _fields(b[:, 16:48], 32, *range(8), mask=1) << np.uint8(4)
    return _scale_sub_blocks(scales, q.astype(np.float32)) - np.repeat(offsets, 32, axis=1)


def _q6_k(b: np.ndarray) -> np.ndarray:
    low = _nibbles(b[:, :128], 64)
    high = _fields(b[:, 128:192], 32, 0, 2, 4, 6, mask=3) << np.uint8(4)
    return _scale_sub_blocks(_half(b, 208) * b[:, 192:208].view(np.int8), _subtract_zero(low | high, 32))


# ------------------------------------------------------------------------------------------------ packing


def _as_half(column: np.ndarray) -> np.ndarray:
    return column.astype(np.float16).view(np.uint8)


def _reciprocal(scale: np.ndarray) -> np.ndarray:
    return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def _round_to(values: np.ndarray, most: int) -> np.ndarray:
    """Positive numbers rounded down to integers of at most `most`."""
    return np.trunc(values).astype(np.uint8).clip(0, most)


def _pack_nibbles(q: np.ndarray) -> np.ndarray:
    return q[:, :16] & np.uint8(15) | q[:, 16:] << np.uint8(4)


def _pack_fifth_bits(q: np.ndarray) -> np.ndarray:
    return np.packbits(q >> np.uint8(4), axis=1, bitorder="little")


def _scale_symmetric(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The scale that maps the value of largest magnitude to the smallest integer, and the integers."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
    zero = (most + 1) // 2
    scale = largest / np.float32(-zero)
    return _as_half(scale), _round_to(x * _reciprocal(scale) + np.float32(zero + 0.5), most)


def _scale_with_offset(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The scale and offset that map the values to 0 ... `most`, and the integers."""
    least = x.min(axis=1, keepdims=True)
    scale = (x.max(axis=1, keepdims=True) - least) / np.float32(most)
    q = _round_to((x - least) * _reciprocal(scale) + np.float32(0.5), most)
    return np.hstack([_as_half(scale), _as_half(least)]), q


def _pack_q8_0(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _reciprocal(scale)
    size = np.abs(scaled)
    whole = np.floor(size)
    rounded = whole + np.floor(np.float32(2) * (size - whole))  # round half away from zero
    return np.hstack([_as_half(scale), (np.sign(scaled) * rounded).astype(np.int8).view(np.uint8)])


def _pack_q4_0(x: np.ndarray) -> np.ndarray:
    head, q = _scale_symmetric(x, 15)
    return np.hstack([head, _pack_nibbles(q)])


def _pack_q4_1(x: np.ndarray) -> np.ndarray:
    head, q = _scale_with_offset(x, 15)
    return np.hstack([head, _pack_nibbles(q)])


def _pack_q5_0(x: np.ndarray) -> np.ndarray:
    head, q = _scale_symmetric(x, 31)
    return np.hstack([head, _pack_fifth_bits(q), _pack_nibbles(q)])


def _pack_q5_1(x: np.ndarray) -> np.ndarray:
    head, q = _scale_with_offset(x, 31)
    return np.hstack([head, _pack_fifth_bits(q), _pack_nibbles(q)])


# ------------------------------------------------------------------------------------------------ the table

FORMATS = {
    f.name: f
    for f in (
        Format("q8_0", 32, 34, 8, _q8_0, _pack_q8_0, file_type=7),
        Format("q4_0", 32, 18, 2, _q4_0, _pack_q4_0, file_type=2),
        Format("q4_1", 32, 20, 3, _q4_1, _pack_q4_1, file_type=3, halves=(0, 2)),
        Format("q5_0", 32, 22, 6, _q5_0, _pack_q5_0, file_type=8),
        Format("q5_1", 32, 24, 7, _q5_1, _pack_q5_1, file_type=9, halves=(0, 2)),
        Format("q2_k", 256, 84, 10, _q2_k, halves=(80, 82)),
        Format("q3_k", 256, 110, 11, _q3_k, halves=(108,)),
        Format("q4_k", 256, 144, 12, _q4_k, halves=(0, 2)),
        Format("q5_k", 256, 176, 13, _q5_k, halves=(0, 2)),
        Format("q6_k", 256, 210, 14, _q6_k, halves=(208,)),
        Format("iq4_nl", 32, 18, 20, _iq4_nl),
    )
}


def names(packing: bool = False) -> str:
    """The names of all formats, or of those with a quantizer, for a message."""
    return ", ".join(name for name, f in FORMATS.items() if f.pack or not packing)


def is_defined(name: str, packing: bool) -> bool:
    """Whether there is a format of this name, or one with a quantizer if `packing`. Case is ignored."""
    of = FORMATS.get(name.lower())
    return of is not None and (of.pack is not None or not packing)


def format_named(name: Any, what: str = "Quantized") -> Format:
    """The format of this name; case is ignored. ValueError for an unknown name, TypeError for a value that is
    no str. Both list the formats.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what}: format has type {type(name).__name__}, expected one of {names()}")
    if name.lower() not in FORMATS:
        raise ValueError(f"{what}: format has value '{name}', expected one of {names()}")
    return FORMATS[name.lower()]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Quantized:
    """An array (..., k) stored as blocks: uint8 `data` (..., row_bytes), C-contiguous, as mapped from a file.

    The data may also be on a device, where a backend's `to_device` puts it.

    Raises TypeError if the data is no uint8 NumPy array, ValueError for an unknown format or for rows that
    are not whole blocks.
    """

    data: np.ndarray
    format: str

    def __post_init__(self) -> None:
        of = format_named(self.format)
        object.__setattr__(self, "format", of.name)
        on_device = bool(device_of(self.data))
        if not isinstance(self.data, np.ndarray) and not on_device:
            raise TypeError(f"Quantized: data has type {type(self.data).__name__}, expected a NumPy array")
        if str(self.data.dtype).removeprefix("torch.") != "uint8":
            raise TypeError(f"Quantized: data has dtype {self.data.dtype}, expected uint8")
        if self.data.ndim < 1 or self.data.shape[-1] % of.bytes:
            expected = f"(... row_bytes) with row_bytes a multiple of {of.bytes} for {of.name}"
            raise ValueError(f"Quantized: data has shape {self.data.shape}, expected {expected}")
        if not on_device and not self.data.flags.c_contiguous:  # a backend checks its own arrays
            expected = "C-contiguous (pass numpy.ascontiguousarray(data))"
            raise ValueError(f"Quantized: data has strides {self.data.strides}, expected {expected}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values: (..., k)."""
        of = FORMATS[self.format]
        *lead, row = self.data.shape
        return (*lead, row // of.bytes * of.values)

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def nbytes(self) -> int:
        """Bytes of the stored blocks."""
        return self.data.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Quantized {self.format} {self.shape}, {self.nbytes} bytes>"

    def __getitem__(self, index: Any) -> Quantized:
        """Index the leading axes. The last axis, which is blocks, stays whole.

        The result is a view if its rows are contiguous, else a copy.
        """
        index = index if isinstance(index, tuple) else (index,)
        rest = (slice(None),) if any(i is Ellipsis for i in index) else (..., slice(None))
        where = (*index, *rest)
        return Quantized(np.ascontiguousarray(self.data[where]), self.format)

    def dequantize(self) -> np.ndarray:
        """The values, float32 (..., k), by the definition. `tensor_ops.dequantize` is faster."""
        return FORMATS[self.format].decode(self.data)
