"""What a scheme is: a way in which published folders store a matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from airllm.files.weight_file import ModelFileError

EXACT = "exactly"
ROUNDED = "exactly but for scales, which are rounded to float16"
NEAREST = "nearest of about its size"


@dataclass(frozen=True)
class Codes:
    """Rows of a matrix: codes (rows, k), int8 or int16, times a scale for each group (rows, groups), plus the
    `least` value of the group (rows, groups), if there is one.
    """

    codes: np.ndarray
    scale: np.ndarray
    least: np.ndarray | None = None


@dataclass(frozen=True)
class Blocks:
    """Rows of a matrix as blocks of the format: uint8 (rows, row_bytes)."""

    data: np.ndarray


Rows = Codes | Blocks | np.ndarray  # floats are quantized


@dataclass(frozen=True)
class Held:
    """The format that a matrix is opened as, its shape, and how well the format holds it."""

    shape: tuple[int, ...]
    format: str
    how: str


@dataclass(frozen=True)
class Parts:
    """The tensors that store one matrix, by suffix. `path` is of the folder, `module` the matrix's module."""

    path: Path
    module: str
    kinds: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
    read: Callable[[str], np.ndarray]

    def __contains__(self, suffix: str) -> bool:
        return suffix in self.kinds

    def shape(self, suffix: str) -> tuple[int, ...]:
        return self.kinds[suffix][1]

    def dtype(self, suffix: str) -> np.dtype[Any]:
        return self.kinds[suffix][0]

    def floats(self, suffix: str) -> np.ndarray:
        """The tensor in float32."""
        return self.read(suffix).astype(np.float32)

    def require(self, suffix: str, shape: tuple[int, ...]) -> None:
        """Raise ModelFileError unless there is a tensor of this shape."""
        if suffix not in self or self.shape(suffix) != shape:
            found = f"has shape {self.shape(suffix)}" if suffix in self else "is missing"
            raise self.error(suffix, found, f"shape {shape}, as the model's quantization says")

    def error(self, suffix: str, found: str, expected: str) -> ModelFileError:
        return ModelFileError(self.path, f"tensor {self.module}.{suffix}", found, expected)


class Scheme(Protocol):
    """`title`: for people. `parts`: the suffixes of the tensors that store a matrix. `ignored`: those of
    tensors beside it that say how activations are quantized, which airllm does in its own way.
    """

    @property
    def title(self) -> str: ...

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def ignored(self) -> tuple[str, ...]: ...

    def stores(self, parts: Parts) -> bool:
        """Whether these tensors are a matrix in this scheme; otherwise they are what they are."""

    def held(self, parts: Parts) -> Held:
        """How the matrix is opened. Raises ModelFileError for tensors that do not fit together."""

    def rows(self, parts: Parts, rows: slice) -> Rows:
        """Some rows of the matrix; leading axes are one."""


def holds(least: int, most: int, row: int, group: int, scale: np.dtype[Any]) -> tuple[str, str]:
    """The format for codes from `least` to `most` with a scale of this dtype for each `group`, in rows of
    `row` values, and how well it holds them.
    """
    if row % 32 == 0 and (group % 32 == 0 or group == row):
        how = EXACT if scale == np.float16 else ROUNDED
        for format, low, high in (("q4_0", -8, 7), ("q5_0", -16, 15), ("q8_0", -128, 127)):
            if low <= least and most <= high:
                return format, how
    return nearest(row)


def group_size(value: Any) -> int:
    """How many values of a row share a scale; -1 or 0: all of them. ValueError for what is no such number."""
    if type(value) is not int or value < -1:
        raise ValueError(f"group_size {value!r}")
    return value


def pair(block: Any) -> tuple[int, int]:
    """Rows and columns that share a scale. ValueError for what is not two such numbers."""
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)):
        raise ValueError(f"blocks of {block!r}")
    return block[0], block[1]


def nearest(row: int) -> tuple[str, str]:
    """The format for values that no format of blocks holds."""
    return ("float16" if row % 32 else "q8_0"), NEAREST


def values_of(codes: Codes) -> np.ndarray:
    """The values, float32 (rows, k)."""
    count, groups = codes.codes.shape[1], codes.scale.shape[1]
    values = codes.codes * spread(codes.scale, -(-count // groups), count)
    return values if codes.least is None else values + spread(codes.least, -(-count // groups), count)


def spread(of_groups: np.ndarray, group: int, count: int) -> np.ndarray:
    """(rows, groups) -> (rows, count): the value of each one's group."""
    return np.repeat(of_groups, group, axis=1)[:, :count]


def unpack_words(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first `count` codes, uint8 (rows, count), in words of 32 bits (rows, words). The lowest bits come
    first. Codes whose bits do not divide 32 go on in the next word.
    """
    words = np.ascontiguousarray(words).view(np.uint32)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = words.view(np.uint8)[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
        return codes.reshape(len(words), -1)[:, :count]
    each = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : count * bits]
    weights = (1 << np.arange(bits)).astype(np.uint8)
    return (each.reshape(len(words), count, bits) * weights).sum(axis=2, dtype=np.uint8)
