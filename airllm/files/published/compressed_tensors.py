"""compressed-tensors (vLLM's llm-compressor): integers packed in words or as bytes, FP8, or NVFP4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from airllm.files.published.fp8 import Fp8
from airllm.files.published.nvfp4 import PACKED, check_groups
from airllm.files.published.scheme import (
    Codes,
    Held,
    Parts,
    Rows,
    Scheme,
    group_size,
    holds,
    nearest,
    pair,
    spread,
)

# Format, type and bits of the weights.
_FLOATS = [(form, "float", 8) for form in ("float-quantized", "naive-quantized")]
_BYTES = [(form, "int", 8) for form in ("int-quantized", "naive-quantized")]
_PACKED = [("pack-quantized", "int", bits) for bits in range(2, 9)]
_NVFP4 = ("nvfp4-pack-quantized", "float", 4)
_INPUT = ("input_scale", "input_zero_point", "input_global_scale")


@dataclass(frozen=True)
class Integers:
    """Codes of `bits` bits in words of 32 (`packed`) or in bytes. `group`: inputs that share a scale, 0 for
    all of a row.
    """

    bits: int
    group: int
    symmetric: bool
    packed: bool
    ignored: tuple[str, ...] = _INPUT

    @property
    def parts(self) -> tuple[str, ...]:
        codes = ("weight_packed", "weight_shape") if self.packed else ("weight",)
        return (*codes, "weight_scale", "weight_zero_point", "weight_g_idx")

    @property
    def title(self) -> str:
        groups = f"groups of {self.group}" if self.group else "a scale for each row"
        return f"compressed-tensors, {self.bits} bits, {groups}"

    def stores(self, parts: Parts) -> bool:
        if self.packed:
            return "weight_packed" in parts
        return "weight" in parts and parts.dtype("weight") == np.int8

    def held(self, parts: Parts) -> Held:
        rows, row = self._shape(parts)
        group = self.group or row
        if parts.shape("weight_scale") not in ((rows, -(-row // group)), (1,), (1, 1), (rows,)):
            found, expected = f"has shape {parts.shape('weight_scale')}", f"({rows}, {-(-row // group)})"
            raise parts.error("weight_scale", found, expected)
        if not self.symmetric and "weight_zero_point" not in parts:
            raise parts.error("weight_zero_point", "is missing", "the zeros of codes that are not symmetric")
        if self._is_reordered(parts, group):
            return Held((rows, row), *nearest(row))
        half = 1 << (self.bits - 1)
        least, most = (-half, half - 1) if self.symmetric else (1 - 2 * half, 2 * half - 1)
        return Held((rows, row), *holds(least, most, row, group, parts.dtype("weight_scale")))

    def rows(self, parts: Parts, rows: slice) -> Rows:
        count, row = self._shape(parts)
        group, half = self.group or row, 1 << (self.bits - 1)
        if self.packed:
            words = parts.read("weight_packed")[rows]
            codes = self._unpack(words, row).astype(np.int16) - half
        else:
            codes = parts.read("weight")[rows].astype(np.int16)
        scale = np.broadcast_to(
            parts.floats("weight_scale").reshape(-1, -(-row // group)), (count, -(-row // group))
        )
        zeros = self._zeros(parts, scale.shape)[rows]
        if self._is_reordered(parts, group):
            of = parts.read("weight_g_idx")
            return (codes - zeros[:, of]) * scale[rows][:, of]
        return Codes(codes - spread(zeros, group, row), scale[rows])

    def _zeros(self, parts: Parts, shape: tuple[int, ...]) -> np.ndarray:
        if self.symmetric:
            return np.zeros(shape, np.int16)
        stored = parts.read("weight_zero_point")
        if stored.dtype == np.int32:  # packed along the rows
            stored = self._unpack(stored.T, shape[0]).T.astype(np.int16) - (1 << (self.bits - 1))
        return np.broadcast_to(stored.astype(np.int16).reshape(-1, shape[1]), shape)

    def _unpack(self, words: np.ndarray, count: int) -> np.ndarray:
        """Whole codes in each word; the bits that are left over are unused."""
        shifts = np.arange(32 // self.bits, dtype=np.uint32) * np.uint32(self.bits)
        unsigned = np.ascontiguousarray(words).view(np.uint32)
        codes = unsigned[:, :, None] >> shifts & np.uint32((1 << self.bits) - 1)
        return codes.reshape(len(words), -1)[:, :count]

    def _shape(self, parts: Parts) -> tuple[int, int]:
        if not self.packed:
            rows, row = parts.shape("weight")
            return rows, row
        parts.require("weight_shape", (2,))
        rows, row = (int(n) for n in parts.read("weight_shape"))
        parts.require("weight_packed", (rows, -(-row // (32 // self.bits))))
        return rows, row

    def _is_reordered(self, parts: Parts, group: int) -> bool:
        if "weight_g_idx" not in parts:
            return False
        of = parts.read("weight_g_idx")
        return bool((of >= 0).all() and (of != np.arange(len(of)) // group).any())


def compressed_tensors(config: dict[str, Any]) -> Scheme:
    groups = list((config.get("config_groups") or {}).values())
    weights = [group.get("weights") for group in groups if isinstance(group, dict)]
    if not weights or any(each != weights[0] for each in weights) or not isinstance(weights[0], dict):
        raise ValueError(f"{len(weights)} groups of modules with different weights")
    form, of = groups[0].get("format") or config.get("format"), weights[0]
    kind = (form, of.get("type"), of.get("num_bits"))
    if kind in _FLOATS:
        block = of.get("block_structure")
        return Fp8(pair(block) if block else None, ignored=_INPUT)
    if kind == _NVFP4:
        check_groups(of)
        return PACKED
    if kind in _PACKED or kind in _BYTES:
        group = group_size(of.get("group_size")) if of.get("strategy") == "group" else 0
        return Integers(
            int(of["num_bits"]), max(group, 0), of.get("symmetric", True) is True, kind in _PACKED
        )
    raise ValueError(f"format {form!r}, type {kind[1]!r} and num_bits {kind[2]!r}")
