"""bitsandbytes: codes of four bits in the table "nf4" or "fp4", or integers of eight bits (LLM.int8()).

Blocks of four-bit codes follow each other through all rows. Their scales (absmax) may be codes of eight bits
themselves, in blocks with a table, a scale and one offset: nested.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from airllm.files.published.scheme import Codes, Held, Parts, Rows, Scheme, holds, nearest
from airllm.formats.bits import nibbles

_STATE = "weight.quant_state.bitsandbytes__"
_ALIGNED = 32  # values of the blocks of formats
_FP4_STEPS = 12  # all values of fp4 but the smallest, 1/192, are so many parts of the scale
_FP4_HOW = "exactly but for its smallest value, 1/192 of a block's scale, and for scales rounded to float16"


@dataclass(frozen=True)
class State:
    """What is stored of a matrix beside its tensors. `nested`: the block size and the offset of scales that
    are codes; a block size of 0 if they are not.
    """

    shape: tuple[int, int]
    block: int
    nested: int
    offset: float


@dataclass(frozen=True)
class FourBits:
    """`kind`: "nf4" or "fp4"."""

    kind: str
    ignored: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"bitsandbytes, {self.kind}"

    @property
    def parts(self) -> tuple[str, ...]:
        tables = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
        return ("weight", *(f"weight.{name}" for name in tables), f"{_STATE}{self.kind}")

    def stores(self, parts: Parts) -> bool:
        return "weight" in parts and "weight.absmax" in parts

    def held(self, parts: Parts) -> Held:
        of = self._state(parts)
        count = prod(of.shape)
        if parts.dtype("weight") != np.uint8 or prod(parts.shape("weight")) != -(-count // 2):
            found = f"has shape {parts.shape('weight')} and dtype {parts.dtype('weight')}"
            raise parts.error("weight", found, f"{-(-count // 2)} bytes for a matrix {of.shape}")
        blocks = -(-count // of.block)
        parts.require("weight.absmax", (blocks,))
        parts.require("weight.quant_map", (16,))
        if of.nested:
            parts.require("weight.nested_absmax", (-(-blocks // of.nested),))
            parts.require("weight.nested_quant_map", (256,))
        if self.kind == "fp4" and self._fits(of):
            return Held(of.shape, "q5_0", _FP4_HOW)
        return Held(of.shape, *nearest(of.shape[1]))

    def rows(self, parts: Parts, rows: slice) -> Rows:
        of = self._state(parts)
        start, stop, _ = rows.indices(of.shape[0])
        first, last = start * of.shape[1], stop * of.shape[1]
        packed = parts.read("weight").reshape(-1)[first // 2 : -(-last // 2)]
        codes = _first_half_high(packed)[first % 2 :][: last - first].reshape(-1, of.shape[1])
        table = parts.floats("weight.quant_map")
        step = _ALIGNED if self._fits(of) else 1  # values in a row that surely share a scale
        scales = self._scales(parts, of, np.arange(first, last, step)).reshape(len(codes), -1)
        if self.held(parts).format == "q5_0":
            return Codes(np.rint(table * _FP4_STEPS).astype(np.int8)[codes], scales / np.float32(_FP4_STEPS))
        return (table[codes].reshape(-1, step) * scales.reshape(-1, 1)).reshape(codes.shape)

    @staticmethod
    def _fits(of: State) -> bool:
        """Whether the scales' blocks are whole blocks of a row."""
        return of.shape[1] % _ALIGNED == 0 and of.block % _ALIGNED == 0

    def _scales(self, parts: Parts, of: State, places: np.ndarray) -> np.ndarray:
        """The scales of the values at these places of the flat matrix."""
        blocks = places // of.block
        if not of.nested:
            return parts.floats("weight.absmax")[blocks]
        codes = parts.read("weight.absmax")[blocks]
        outer = parts.floats("weight.nested_absmax")[blocks // of.nested]
        return parts.floats("weight.nested_quant_map")[codes] * outer + np.float32(of.offset)

    def _state(self, parts: Parts) -> State:
        name = f"{_STATE}{self.kind}"
        if name not in parts:
            raise parts.error(name, "is missing", "JSON with the shape and the block size of the matrix")
        try:
            of = json.loads(parts.read(name).tobytes())
            rows, row = of["shape"]
            nested = of["nested_blocksize"] if "weight.nested_absmax" in parts else 0
            state = State(
                (int(rows), int(row)), int(of["blocksize"]), int(nested), float(of.get("nested_offset", 0.0))
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            found, expected = f"cannot be read: {error!r}", "JSON with shape, blocksize and nested_blocksize"
            raise parts.error(name, found, expected) from None
        if min(*state.shape, state.block) < 1 or state.nested < 0:
            raise parts.error(name, f"has {state}", "positive numbers")
        return state


@dataclass(frozen=True)
class EightBits:
    """Rows of bytes, each with its largest value (SCB): 127 of its steps."""

    title: str = "bitsandbytes, int8"
    parts: tuple[str, ...] = ("weight", "SCB", "weight_format")
    ignored: tuple[str, ...] = ()

    def stores(self, parts: Parts) -> bool:
        return "weight" in parts and parts.dtype("weight") == np.int8

    def held(self, parts: Parts) -> Held:
        rows, row = parts.shape("weight")
        parts.require("SCB", (rows,))
        if "weight_format" in parts and (order := int(parts.read("weight_format"))):
            raise parts.error("weight_format", f"has value {order}", "0: rows that are not ordered for a GPU")
        return Held((rows, row), *holds(-128, 127, row, row, parts.dtype("SCB")))

    def rows(self, parts: Parts, rows: slice) -> Codes:
        scale = parts.floats("SCB")[rows].reshape(-1, 1) / np.float32(127)
        return Codes(parts.read("weight")[rows].astype(np.int16), scale)


def bitsandbytes(config: dict[str, Any]) -> Scheme:
    if config.get("load_in_8bit", config.get("_load_in_8bit")):
        return EightBits()
    kind = config.get("bnb_4bit_quant_type", "fp4")
    if not config.get("load_in_4bit", config.get("_load_in_4bit")) or kind not in ("nf4", "fp4"):
        raise ValueError(f"load_in_4bit {config.get('load_in_4bit')!r} and bnb_4bit_quant_type {kind!r}")
    storage = config.get("bnb_4bit_quant_storage", "uint8")
    if storage != "uint8":
        raise ValueError(f"bnb_4bit_quant_storage {storage!r}")
    return FourBits(kind)


def _first_half_high(packed: np.ndarray) -> np.ndarray:
    """The codes in bytes, uint8 (codes,); the upper half of a byte comes first."""
    return nibbles(packed.reshape(1, -1), run=1).reshape(-1, 2)[:, ::-1].reshape(-1)
