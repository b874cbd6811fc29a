"""GPTQ and AWQ: codes in words of 32 bits, with a scale and a zero for each group of inputs. A column of
what is stored has the weights of an output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from airllm.files.published.scheme import (
    Codes,
    Held,
    Parts,
    Rows,
    group_size,
    holds,
    nearest,
    spread,
    unpack_words,
)

_ORDER = np.array(
    (0, 4, 1, 5, 2, 6, 3, 7)
)  # of AWQ's codes in a word: code i has the bits from 4 * _ORDER[i]


@dataclass(frozen=True)
class Gptq:
    """`group`: inputs that share a scale, -1 for all. `more`: what is added to a stored zero."""

    bits: int
    group: int
    symmetric: bool
    more: int
    parts: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")
    ignored: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"GPTQ, {self.bits} bits, {_groups(self.group)}"

    def stores(self, parts: Parts) -> bool:
        return "qweight" in parts

    def held(self, parts: Parts) -> Held:
        words, outputs = parts.shape("qweight")
        inputs = words * 32 // self.bits
        group = _group(self.group, inputs)
        parts.require("scales", (-(-inputs // group), outputs))
        parts.require("qzeros", (-(-inputs // group), -(-outputs * self.bits // 32)))
        if self._is_reordered(parts, group):
            return Held((outputs, inputs), *nearest(inputs))
        half = 1 << (self.bits - 1)
        least, most = (-half, half - 1) if self.symmetric else (-2 * half, 2 * half - 1)
        return Held((outputs, inputs), *holds(least, most, inputs, group, parts.dtype("scales")))

    def rows(self, parts: Parts, rows: slice) -> Rows:
        words, outputs = parts.shape("qweight")
        inputs = words * 32 // self.bits
        group = _group(self.group, inputs)
        small = np.int8 if self.bits < 8 else np.int16
        codes = unpack_words(parts.read("qweight")[:, rows].T, self.bits, inputs).astype(small)
        zeros = unpack_words(parts.read("qzeros"), self.bits, outputs)[:, rows].T.astype(small) + small(
            self.more
        )
        scale = parts.floats("scales")[:, rows].T
        if self._is_reordered(parts, group):
            of = parts.read("g_idx")
            return (codes - zeros[:, of]) * scale[:, of]
        return Codes(codes - spread(zeros, group, inputs), scale)

    def _is_reordered(self, parts: Parts, group: int) -> bool:
        """Whether groups are not of adjacent inputs (desc_act)."""
        if "g_idx" not in parts:
            return False
        of = parts.read("g_idx")
        return bool((of != np.arange(len(of)) // group).any())


@dataclass(frozen=True)
class Awq:
    """Four bits, packed along the outputs, in an order of its own."""

    group: int
    parts: tuple[str, ...] = ("qweight", "qzeros", "scales")
    ignored: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"AWQ, 4 bits, {_groups(self.group)}"

    def stores(self, parts: Parts) -> bool:
        return "qweight" in parts

    def held(self, parts: Parts) -> Held:
        inputs, words = parts.shape("qweight")
        group = _group(self.group, inputs)
        parts.require("scales", (-(-inputs // group), words * 8))
        parts.require("qzeros", (-(-inputs // group), words))
        return Held((words * 8, inputs), *holds(-15, 15, inputs, group, parts.dtype("scales")))

    def rows(self, parts: Parts, rows: slice) -> Codes:
        inputs = parts.shape("qweight")[0]
        first, last = rows.start // 8, -(-rows.stop // 8)
        part = slice(rows.start - first * 8, rows.stop - first * 8)

        def unpack(name: str) -> np.ndarray:
            words = np.ascontiguousarray(parts.read(name)[:, first:last]).view(np.uint32)
            halves = words.view(np.uint8)[:, :, None] >> np.array((0, 4), np.uint8) & np.uint8(15)
            codes = halves.reshape(len(words), -1, 8)[:, :, _ORDER]
            return np.ascontiguousarray(codes.reshape(len(words), -1)[:, part].T).view(np.int8)

        zeros = spread(unpack("qzeros"), _group(self.group, inputs), inputs)
        return Codes(unpack("qweight") - zeros, parts.floats("scales")[:, rows].T)


def gptq(config: dict[str, Any]) -> Gptq:
    form = config.get("checkpoint_format", "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise ValueError(f"checkpoint_format {form!r}")
    if config.get("bits") not in (2, 3, 4, 8):
        raise ValueError(f"bits {config.get('bits')!r}")
    if config.get("dynamic"):
        raise ValueError("settings of its own for some modules (dynamic)")
    symmetric, group = config.get("sym", True) is True, group_size(config.get("group_size", 128))
    return Gptq(int(config["bits"]), group, symmetric, int(form == "gptq"))


def awq(config: dict[str, Any]) -> Awq:
    bits = config.get("bits", config.get("w_bit", 4))
    version = str(config.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm" or config.get("zero_point", True) is not True:
        raise ValueError(f"bits {bits!r}, version {version!r}, zero_point {config.get('zero_point')!r}")
    return Awq(group_size(config.get("group_size", config.get("q_group_size", 128))))


def _group(group: int, inputs: int) -> int:
    return inputs if group < 1 else group


def _groups(group: int) -> str:
    return "a scale for each row" if group < 1 else f"groups of {group}"
