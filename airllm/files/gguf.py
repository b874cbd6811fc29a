"""Reads GGUF files, versions 2 and 3: metadata, and tensors as views of read-only memory maps.

The reader of the package `gguf` makes an array of every word of the vocabulary, which takes seconds. This
module only skips over an array in the metadata to find its end, and decodes its items on first use.
It trusts nothing in a file: every count, length and offset is checked against the file's size before use.

Layout, all little-endian: magic, version, number of tensors, number of keys; the keys and their values; name,
dimensions, type and offset of each tensor; padding to the alignment; the tensors' data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np

from airllm.files.gguf_parts import check_parts, locate_parts
from airllm.files.weight_file import FileMap, ModelFileError, Span, Stored, first_names, map_file, unmap
from airllm.formats import FORMATS, Quantized

_STRING, _ARRAY, _BOOL = 8, 9, 7
# GGUF's number of a value type -> its `struct` format
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_LEAST_KEY = 8 + 4 + 1  # bytes: an empty name, a type, a value of one byte
_LEAST_TENSOR = 8 + 4 + 4 + 8
_MOST_DIMENSIONS = 4
_ALIGNMENT = "general.alignment"

# ggml's number of a tensor type -> the NumPy dtype
_DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.float32),
    1: np.dtype(np.float16),
    24: np.dtype(np.int8),
    25: np.dtype(np.int16),
    26: np.dtype(np.int32),
    27: np.dtype(np.int64),
    28: np.dtype(np.float64),
    30: np.dtype(ml_dtypes.bfloat16),
}
_FORMATS = {of.ggml_type: of for of in FORMATS.values()}
# A type that is no format of airllm: `published/nvfp4_gguf.py` converts it.
NVFP4, NVFP4_VALUES, NVFP4_BYTES = 40, 64, 36
_BLOCKS = {kind: (of.values, of.bytes, of.name) for kind, of in _FORMATS.items()}
_BLOCKS[NVFP4] = NVFP4_VALUES, NVFP4_BYTES, "nvfp4"
# Unsupported types of ggml, for the error message.
_OTHERS = {9: "q8_1", 15: "q8_k", 41: "q1_0"}


@dataclass(frozen=True)
class TensorInfo:
    """A tensor in the header: its shape, rows last, and its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    start: int
    nbytes: int


class _Part:
    """A mapped file with its own `metadata` and `tensors`: a whole model, or a part of one."""

    def __init__(self, path: Path):
        self.path = path
        self.map = map_file(path)
        try:
            reader = _Reader(path, self.map)
            self.version, tensors, keys = _start(reader)
            self.metadata = Metadata(path, self.map, *_keys(reader, keys))
            infos = [_tensor(reader, i) for i in range(tensors)]
            self.data_start = _align(reader.at, self.metadata.alignment())
            self.tensors = _place_tensors(self, infos, len(self.map))
        except BaseException:
            unmap(self.map)
            raise

    def tensor(self, name: str) -> Stored:
        info = self.tensors[name]
        if info.ggml_type in _BLOCKS:
            values, size, format = _BLOCKS[info.ggml_type]
            *lead, row = info.shape
            data = np.frombuffer(self.map, np.uint8, info.nbytes, info.start)
            blocks = data.reshape(*lead, row // values * size)
            return Quantized(blocks, format) if format in FORMATS else blocks
        flat = np.frombuffer(self.map, _DTYPES[info.ggml_type], prod(info.shape), info.start)
        return flat.reshape(info.shape)

    def close(self) -> None:
        unmap(self.map)


class GgufFile:
    """A GGUF file, or all files of a model that is split into parts: its `metadata`, and its tensors by name.

    `path` may be that of any part; afterwards it is that of the first part, which has the metadata. A tensor
    is a NumPy array (float32, float16, bfloat16, or another NumPy dtype) or a `Quantized`; in NVFP4, blocks
    as bytes. Its shape is ggml's reversed: the last axis is contiguous. Raises ModelFileError for a file that
    is broken or unsupported and for parts that are missing, OSError for a file that cannot be opened.
    """

    def __init__(self, path: str | PathLike[str]):
        self._parts = _open_parts(Path(path))
        first = self._parts[0]
        self.path, self.version, self.metadata = first.path, first.version, first.metadata
        self.tensors = {name: info for part in self._parts for name, info in part.tensors.items()}
        self._part_of = {name: part for part in self._parts for name in part.tensors}

    def names(self) -> list[str]:
        """Names of all tensors, in the order of the header."""
        return list(self.tensors)

    def tensor(self, name: str) -> Stored:
        """A read-only view of the map; it reads nothing yet. ModelFileError for an unknown name."""
        return self._part_with(name).tensor(name)

    def span(self, name: str) -> Span:
        """The tensor's bytes in the map of its file."""
        part = self._part_with(name)
        info = part.tensors[name]
        return Span(part.map, info.start, info.nbytes)

    def maps(self) -> list[FileMap]:
        """The maps of all files, also of a first part without tensors."""
        return [part.map for part in self._parts]

    def close(self) -> None:
        """Close the files. Arrays that are still held keep their maps."""
        for part in self._parts:
            part.close()

    def _part_with(self, name: str) -> _Part:
        if name not in self._part_of:
            raise ModelFileError(
                self.path, f"tensor {name}", "is missing", f"one of {first_names(self.tensors)}"
            )
        return self._part_of[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_parts(path: Path) -> list[_Part]:
    """Open the file, and all others if it is one of several parts; in order."""
    with ExitStack() as opened:
        given = opened.enter_context(closing(_Part(path)))
        paths = locate_parts(given)
        if paths == [path]:
            parts = [given]
        else:
            parts = [given if p == path else opened.enter_context(closing(_Part(p))) for p in paths]
            check_parts(parts)
        opened.pop_all()
    return parts


# ------------------------------------------------------------------------------------------------ metadata


@dataclass(frozen=True)
class _Array:
    """An array in the metadata, not yet decoded."""

    type: int
    start: int
    count: int


class Metadata(Mapping[str, Any]):
    """The keys of a GGUF file: numbers, booleans, strings, lists of strings, arrays of numbers.

    Lists are decoded on first use. `types` has GGUF's numbers of each value's type and, for an array, of its
    items' type.
    """

    def __init__(self, path: Path, map: Any, values: dict[str, Any], types: dict[str, tuple[int, ...]]):
        self._path, self._map, self._values, self.types = path, map, values, types

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _Array):
            value = self._values[key] = self._decode(key, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def alignment(self) -> int:
        """Alignment of the tensors' data, in bytes."""
        value = self._values.get(_ALIGNMENT, 32)
        if type(value) is not int or value < 8 or value & (value - 1) or value > len(self._map):
            expected = "a power of two from 8 up to the file's size"
            raise ModelFileError(self._path, f"key {_ALIGNMENT}", f"has value {value!r}", expected)
        return value

    def _decode(self, key: str, array: _Array) -> Any:
        if array.type == _STRING:
            return self._strings(key, array)
        code = _SCALARS[array.type]
        values = np.frombuffer(self._map, np.dtype(code), array.count, array.start).copy()
        return values.astype(bool) if array.type == _BOOL else values

    def _strings(self, key: str, array: _Array) -> list[str]:
        map, at, found = self._map, array.start, []
        length_at = struct.Struct("<Q").unpack_from
        for i in range(array.count):
            start = at + 8
            at = start + length_at(map, at)[0]  # inside the file: _walk_strings checked it
            try:
                found.append(map[start:at].decode())
            except UnicodeDecodeError:
                raise ModelFileError(
                    self._path, f"key {key}", f"has bytes {map[start:at][:32]!r} in item {i}", "UTF-8"
                ) from None
        return found


class _Reader:
    """A position in the file. Each read advances it and checks that it stays inside the file."""

    def __init__(self, path: Path, map: Any):
        self.path, self.map, self.size, self.at = path, map, len(map), 0

    def error(self, place: str, found: str, expected: str = "") -> ModelFileError:
        return ModelFileError(self.path, place, found, expected)

    def skip(self, count: int, place: str) -> int:
        """Skip `count` bytes; returns where they start."""
        start = self.at
        if count > self.size - start:
            expected = f"at most {self.size - start}, where the file ends"
            raise self.error(place, f"at byte {start} takes {count} bytes", expected)
        self.at = start + count
        return start

    def number(self, code: str, place: str) -> Any:
        start = self.skip(struct.calcsize(code), place)
        return struct.unpack_from(code, self.map, start)[0]

    def text(self, place: str) -> str:
        length = self.number("<Q", place)
        start = self.skip(length, place)
        raw = self.map[start : start + length]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(place, f"at byte {start} has bytes {raw[:32]!r}", "UTF-8") from None

    def fits(self, count: int, least: int, place: str) -> None:
        """Raise if the rest of the file cannot hold `count` items of at least `least` bytes each."""
        if count > (most := (self.size - self.at) // least):
            raise self.error(place, f"is {count}", f"at most {most} in a file of {self.size} bytes")


def _start(reader: _Reader) -> tuple[int, int, int]:
    """Version, number of tensors, number of keys."""
    magic = reader.map[: reader.skip(4, "the magic number") + 4]
    if magic != b"GGUF":
        raise reader.error("the magic number", f"is {magic!r}", "b'GGUF'")
    version = reader.number("<I", "the version")
    if version and version & 0xFFFF == 0:
        raise reader.error("the file", "is big-endian", "a little-endian GGUF file")
    if version not in (2, 3):
        raise reader.error("the version", f"is {version}", "2 or 3")
    tensors = reader.number("<Q", "the number of tensors")
    keys = reader.number("<Q", "the number of keys")
    reader.fits(keys, _LEAST_KEY, "the number of keys")
    reader.fits(tensors, _LEAST_TENSOR, "the number of tensors")
    return version, tensors, keys


def _keys(reader: _Reader, count: int) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The values of all keys, and their types."""
    values: dict[str, Any] = {}
    types: dict[str, tuple[int, ...]] = {}
    for i in range(count):
        key = reader.text(f"the name of key {i}")
        if key in values:
            raise reader.error(f"key {key}", "stands twice", "each key once")
        start = reader.at
        value = values[key] = _value(reader, f"key {key}")
        kind = struct.unpack_from("<I", reader.map, start)
        types[key] = (*kind, value.type) if isinstance(value, _Array) else kind
    return values, types


def _value(reader: _Reader, place: str) -> Any:
    kind = reader.number("<I", place)
    if kind == _STRING:
        return reader.text(place)
    if kind == _ARRAY:
        return _array(reader, place)
    if kind not in _SCALARS:
        raise reader.error(place, f"has type {kind}", "a type from 0 to 12")
    value = reader.number(_SCALARS[kind], place)
    if kind == _BOOL and value > 1:
        raise reader.error(place, f"has value {value}", "a boolean, 0 or 1")
    return bool(value) if kind == _BOOL else value


def _array(reader: _Reader, place: str) -> _Array:
    kind = reader.number("<I", place)
    if kind not in _SCALARS and kind != _STRING:
        raise reader.error(place, f"is an array of type {kind}", "an array of numbers or strings")
    count = reader.number("<Q", place)
    size = 8 if kind == _STRING else struct.calcsize(_SCALARS[kind])
    reader.fits(count, size, f"{place}: the number of items")
    start = reader.at
    if kind == _STRING:
        _walk_strings(reader, count, place)
    else:
        reader.skip(count * size, place)
    return _Array(kind, start, count)


def _walk_strings(reader: _Reader, count: int, place: str) -> None:
    """Skip strings without decoding them: a vocabulary has hundreds of thousands."""
    length_at: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
    map, at, last = reader.map, reader.at, reader.size - 8
    for i in range(count):
        if at > last:
            raise reader.error(place, f"ends with the file in item {i}", f"{count} items")
        at += 8 + length_at(map, at)[0]
    if at > reader.size:
        raise reader.error(place, f"takes {at - reader.at} bytes", f"at most {reader.size - reader.at}")
    reader.at = at


# ------------------------------------------------------------------------------------------------ tensors


def _tensor(reader: _Reader, index: int) -> TensorInfo:
    """Read a tensor's entry in the header; `start` counts from the start of the data."""
    name = reader.text(f"the name of tensor {index}")
    place = f"tensor {name}"
    count = reader.number("<I", place)
    if count > _MOST_DIMENSIONS:
        raise reader.error(place, f"has {count} dimensions", f"at most {_MOST_DIMENSIONS}")
    shape = tuple(reader.number("<Q", place) for _ in range(count))[::-1]
    kind, offset = reader.number("<I", place), reader.number("<Q", place)
    return TensorInfo(name, shape, kind, offset, _bytes_of(reader, place, shape, kind))


def _bytes_of(reader: _Reader, place: str, shape: tuple[int, ...], kind: int) -> int:
    if 0 in shape:
        raise reader.error(place, f"has shape {shape}", "dimensions of 1 or more")
    if kind in _DTYPES:
        return prod(shape) * _DTYPES[kind].itemsize
    if kind not in _BLOCKS:
        names = (*(str(dtype) for dtype in _DTYPES.values()), *FORMATS)
        found = f"has type {kind}" + (f" ({_OTHERS[kind]})" if kind in _OTHERS else "")
        raise reader.error(place, found, f"one of {', '.join(names)}")
    values, size, format = _BLOCKS[kind]
    if not shape or shape[-1] % values:
        expected = f"rows of a multiple of {values} for {format}"
        raise reader.error(place, f"has shape {shape}", expected)
    return prod(shape) // values * size


def _align(at: int, alignment: int) -> int:
    return (at + alignment - 1) // alignment * alignment


def _place_tensors(file: _Part, infos: list[TensorInfo], size: int) -> dict[str, TensorInfo]:
    """The tensors by name, with offsets in the file. They must be aligned, inside the file and disjoint."""
    found: dict[str, TensorInfo] = {}
    alignment = file.metadata.alignment()
    for info in infos:
        place = f"tensor {info.name}"
        if info.name in found:
            raise ModelFileError(file.path, place, "stands twice", "each tensor once")
        if info.start % alignment:
            raise ModelFileError(file.path, place, f"has offset {info.start}", f"a multiple of {alignment}")
        start = file.data_start + info.start
        if start + info.nbytes > size:
            what = f"takes bytes {start} to {start + info.nbytes}"
            raise ModelFileError(file.path, place, what, f"an end within the file's {size} bytes")
        found[info.name] = TensorInfo(info.name, info.shape, info.ggml_type, start, info.nbytes)
    in_order = sorted(found.values(), key=lambda info: info.start)
    for before, info in zip(in_order, in_order[1:], strict=False):
        if before.start + before.nbytes > info.start:
            what = f"starts at byte {info.start}"
            expected = f"byte {before.start + before.nbytes} or later, where tensor {before.name} ends"
            raise ModelFileError(file.path, f"tensor {info.name}", what, expected)
    return found
