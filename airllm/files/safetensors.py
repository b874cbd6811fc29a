"""Hugging Face folders: `model.safetensors`, or the shards that `model.safetensors.index.json` names.

A safetensors file has eight bytes with the length of the header, the header (JSON: type, shape and offsets of
each tensor), and the tensors. The package `safetensors` is used only in tests. It copies each tensor, it does
not say where a tensor is in the file, which prefetch and release need, and most of its messages name neither
the file nor the tensor.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np

from airllm.files.weight_file import (
    FileMap,
    ModelFileError,
    Span,
    first_names,
    map_file,
    parse_json,
    read_json,
    unmap,
)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MOST_HEADER = 100_000_000  # bytes; the format's own limit
_MOST_DIMENSIONS = 8

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F64": np.dtype(np.float64),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32),
    "U64": np.dtype(np.uint64),
    "BOOL": np.dtype(np.bool_),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}


@dataclass(frozen=True)
class _Place:
    """A tensor's type, shape and bytes in its file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    nbytes: int


class SafetensorsFile:
    """One mapped safetensors file, its header checked."""

    def __init__(self, path: Path):
        self.path = path
        self.map = map_file(path)
        try:
            start, header = _header(path, self.map)
            self.places = {
                name: _place(path, name, entry, start, len(self.map))
                for name, entry in header.items()
                if name != "__metadata__"
            }
            _check_overlap(path, self.places)
        except BaseException:
            unmap(self.map)
            raise

    def tensor(self, name: str) -> np.ndarray:
        """A view of the map; a copy only if the tensor is unaligned, which usual writers avoid."""
        at = self.places[name]
        if not at.nbytes:
            return np.empty(at.shape, at.dtype)
        flat = np.frombuffer(self.map, at.dtype, prod(at.shape), at.start)
        return np.require(flat.reshape(at.shape), requirements="A")


class SafetensorsFolder:
    """The tensors of a Hugging Face folder by name, as read-only views of its mapped files.

    A shard is opened on first use of one of its tensors. Raises ModelFileError for a folder or file that is
    broken or unsupported.
    """

    def __init__(self, path: str | PathLike[str]):
        self.path = Path(path)
        self._open: dict[str, SafetensorsFile] = {}
        if (self.path / INDEX).is_file():
            self._shards = _index(self.path)
        elif (self.path / SINGLE).is_file():
            self._shards = dict.fromkeys(self._file(SINGLE).places, SINGLE)
        else:
            there = sorted(entry.name for entry in self.path.iterdir() if entry.is_file())
            expected = f"{SINGLE} or {INDEX}, or a GGUF file"
            raise ModelFileError(self.path, "", f"holds {first_names(there) or 'no files'}", expected)

    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._shards)

    def tensor(self, name: str) -> np.ndarray:
        """A view of the mapped file; it reads nothing yet. ModelFileError for an unknown name."""
        return self._file_with(name).tensor(name)

    def span(self, name: str) -> Span:
        """The tensor's bytes in its map."""
        file = self._file_with(name)
        at = file.places[name]
        return Span(file.map, at.start, at.nbytes)

    def maps(self) -> list[FileMap]:
        """The maps of the shards that are open."""
        return [file.map for file in self._open.values()]

    def close(self) -> None:
        """Close the files. Arrays that are still held keep their maps."""
        for file in self._open.values():
            unmap(file.map)
        self._open.clear()

    def _file_with(self, name: str) -> SafetensorsFile:
        if name not in self._shards:
            raise ModelFileError(
                self.path, f"tensor {name}", "is missing", f"one of {first_names(self._shards)}"
            )
        file = self._file(self._shards[name])
        if name not in file.places:
            expected = f"in this file, as {INDEX} says; it holds {first_names(file.places)}"
            raise ModelFileError(file.path, f"tensor {name}", "is missing", expected)
        return file

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._open:
            self._open[name] = SafetensorsFile(self.path / name)
        return self._open[name]

    def __contains__(self, name: str) -> bool:
        return name in self._shards

    def __enter__(self) -> SafetensorsFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _index(folder: Path) -> dict[str, str]:
    """Tensor name -> file name. The files must be in the folder itself, and exist."""
    path = folder / INDEX
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelFileError(path, "weight_map", f"is {shards!r}", "tensor names with file names")
    for name, shard in shards.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelFileError(path, f"tensor {name}", f"lies in {shard!r}", "the name of a file beside it")
    for shard in sorted(set(shards.values())):
        if not (folder / shard).is_file():
            count = list(shards.values()).count(shard)
            raise ModelFileError(folder, f"file {shard}", "is missing", f"{count} tensors in it by {INDEX}")
    return shards


def _header(path: Path, map: FileMap) -> tuple[int, dict[str, Any]]:
    """The offset of the tensors, and the parsed header."""
    size = len(map)
    if size < 8:
        raise ModelFileError(path, "the file", f"has {size} bytes", "8 and a header")
    (length,) = struct.unpack_from("<Q", map)
    most = min(size - 8, _MOST_HEADER)
    if length > most:
        what = f"at most {most} in a file of {size} bytes"
        raise ModelFileError(path, "the header", f"takes {length} bytes", what)
    return 8 + length, parse_json(path, map[8 : 8 + length], "the header")


def _place(path: Path, name: str, entry: Any, start: int, size: int) -> _Place:
    """A checked entry of the header."""
    place = f"tensor {name}"
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, span = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ModelFileError(path, place, f"has dtype {dtype!r}", f"one of {', '.join(_DTYPES)}")
    # NumPy multiplies the sizes of the other axes even if an array is empty.
    if not _whole_numbers(shape) or len(shape) > _MOST_DIMENSIONS or prod(max(n, 1) for n in shape) >> 48:
        raise ModelFileError(path, place, f"has shape {shape!r}", f"at most {_MOST_DIMENSIONS} whole numbers")
    if not _whole_numbers(span) or len(span) != 2 or span[0] > span[1]:
        raise ModelFileError(path, place, f"has data_offsets {span!r}", "a start and an end")
    if start + span[1] > size:
        what = f"takes bytes {start + span[0]} to {start + span[1]}"
        raise ModelFileError(path, place, what, f"an end within the file's {size} bytes")
    needed = prod(shape) * _DTYPES[dtype].itemsize
    if span[1] - span[0] != needed:
        what = f"takes {span[1] - span[0]} bytes"
        raise ModelFileError(path, place, what, f"{needed} for {dtype} of shape {tuple(shape)}")
    return _Place(_DTYPES[dtype], tuple(shape), start + span[0], needed)


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_overlap(path: Path, places: dict[str, _Place]) -> None:
    in_order = sorted(places.items(), key=lambda item: item[1].start)
    for (before, first), (name, second) in zip(in_order, in_order[1:], strict=False):
        if first.start + first.nbytes > second.start:
            expected = f"byte {first.start + first.nbytes} or later, where tensor {before} ends"
            raise ModelFileError(path, f"tensor {name}", f"starts at byte {second.start}", expected)
