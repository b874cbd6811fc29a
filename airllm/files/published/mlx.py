"""MLX: codes in words of 32 bits along the inputs, with a scale and a bias for each group, or MXFP4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from airllm.files.published.scheme import (
    EXACT,
    ROUNDED,
    Blocks,
    Codes,
    Held,
    Parts,
    Rows,
    nearest,
    unpack_words,
)
from airllm.formats.bits import pack_nibbles

_BITS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class Mlx:
    """`bits` and `group` of a matrix, or "mxfp4" as the `mode`."""

    bits: int
    group: int
    mode: str = "affine"
    parts: tuple[str, ...] = ("weight", "scales", "biases")
    ignored: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return "MLX, MXFP4" if self.mode == "mxfp4" else f"MLX, {self.bits} bits, groups of {self.group}"

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
        least = self._flat(parts.floats("biases"))[rows]
        return Codes(
            codes.view(np.int8) if self.bits < 8 else codes.astype(np.int16), scales.astype(np.float32), least
        )

    def _flat(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1, array.shape[-1])


def mlx(config: dict[str, Any]) -> Mlx:
    mode = config.get("mode", "affine")
    if mode not in ("affine", "mxfp4"):
        raise ValueError(f"mode {mode!r}")
    bits, group = config.get("bits", 4), config.get("group_size", 64 if mode == "affine" else 32)
    if bits not in (_BITS if mode == "affine" else (4,)) or type(group) is not int or group < 1:
        raise ValueError(f"bits {bits!r} and group_size {group!r}")
    return Mlx(int(bits), group, mode)
