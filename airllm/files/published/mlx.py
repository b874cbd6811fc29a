"""MLX: codes in words of 32 bits along the inputs, with a scale and a bias for each group; or floats of 4 or
8 bits with a scale for each group, in a byte: a power of two (MXFP4, MXFP8) or in FP8 (NVFP4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from airllm.files.published.nvfp4 import E2M1
from airllm.files.published.scheme import (
    EXACT,
    ROUNDED,
    Blocks,
    Codes,
    Held,
    Parts,
    Rows,
    nearest,
    spread,
    unpack_words,
)
from airllm.formats.bits import pack_nibbles

_BITS = (2, 3, 4, 5, 6, 8)
_FLOATS = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}  # mode -> bits, group
_E4M3 = ml_dtypes.float8_e4m3fn


@dataclass(frozen=True)
class Mlx:
    """`bits` and `group` of a matrix; the `mode` is "affine", or one of `_FLOATS`."""

    bits: int
    group: int
    mode: str = "affine"
    parts: tuple[str, ...] = ("weight", "scales", "biases")
    ignored: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        if self.mode in _FLOATS:
            return f"MLX, {self.mode.upper()}"
        return f"MLX, {self.bits} bits, groups of {self.group}"

    def stores(self, parts: Parts) -> bool:
        return "scales" in parts and "weight" in parts

    def held(self, parts: Parts) -> Held:
        *lead, words = parts.shape("weight")
        if parts.dtype("weight") != np.uint32:
            raise parts.error("weight", f"has dtype {parts.dtype('weight')}", "uint32, which has codes")
        row = words * 32 // self.bits
        parts.require("scales", (*lead, row // self.group))
        if self.mode == "mxfp4":
            return Held((*lead, row), "mxfp4", EXACT)
        if self.mode in _FLOATS:
            return Held((*lead, row), *nearest(row))
        parts.require("biases", (*lead, row // self.group))
        if row % 32 or self.group % 32 or self.bits > 5:
            return Held((*lead, row), *nearest(row))
        how = EXACT if parts.dtype("scales") == np.float16 else ROUNDED
        return Held((*lead, row), "q5_1" if self.bits == 5 else "q4_1", how)

    def rows(self, parts: Parts, rows: slice) -> Rows:
        words, scales = self._flat(parts.read("weight"))[rows], self._flat(parts.read("scales"))[rows]
        codes = unpack_words(words, self.bits, words.shape[1] * 32 // self.bits)
        if self.mode == "mxfp4":
            blocks = np.hstack([scales.reshape(-1, 1), pack_nibbles(codes.reshape(-1, 32))])
            return Blocks(blocks.reshape(len(words), -1))
        if self.mode in _FLOATS:
            values = E2M1[codes] if self.bits == 4 else codes.view(_E4M3).astype(np.float32)
            return values * spread(self._of_floats(scales), self.group, codes.shape[1])
        least = self._flat(parts.floats("biases"))[rows]
        return Codes(
            codes.view(np.int8) if self.bits < 8 else codes.astype(np.int16), scales.astype(np.float32), least
        )

    def _of_floats(self, scales: np.ndarray) -> np.ndarray:
        """Scales of floats in float32; they are stored in bytes."""
        kind = _E4M3 if self.mode == "nvfp4" else ml_dtypes.float8_e8m0fnu
        return scales.view(kind).astype(np.float32)

    def _flat(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1, array.shape[-1])


def mlx(config: dict[str, Any]) -> Mlx:
    mode = config.get("mode", "affine")
    if mode != "affine" and mode not in _FLOATS:
        raise ValueError(f"mode {mode!r}")
    bits, group = _FLOATS.get(mode, (4, 64))
    bits, group = config.get("bits", bits), config.get("group_size", group)
    known = bits in _BITS if mode == "affine" else (bits, group) == _FLOATS[mode]
    if not known or type(group) is not int or group < 1:
        raise ValueError(f"bits {bits!r} and group_size {group!r}")
    return Mlx(int(bits), group, mode)
