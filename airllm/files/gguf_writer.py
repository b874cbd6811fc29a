"""Writes GGUF files with the package `gguf`, piece by piece, as the tensors are computed."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from airllm.files.weight_file import Stored
from airllm.formats import FORMATS, Quantized
from airllm.progress import OnProgress
from airllm.writable import to_disk

Pieces = Callable[[], Iterable[np.ndarray]]

# GGUF's numbers of value types.
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = (4,), (5,), (6,), (7,), (8,), (9,)

# ggml's numbers of the floating-point tensor types.
FLOATS = {"float32": 0, "float16": 1, "bfloat16": 30}


@dataclass(frozen=True)
class Key:
    """A key of the metadata. `types` has GGUF's number of the value's type and, for a list, of its items'."""

    name: str
    value: Any
    types: tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """A tensor to convert, under its GGUF name. `parts` yields its values, in order along the first axis."""

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int
    parts: Callable[[], Iterable[Stored]]

    @classmethod
    def of(cls, name: str, stored: Stored, parts: Callable[[], Iterable[Stored]]) -> Source:
        """A source with the shape and format of `stored`."""
        format = stored.format if isinstance(stored, Quantized) else str(stored.dtype)
        return cls(name, stored.shape, format, stored.nbytes, parts)


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to write: its entry in the header, and its data in consecutive pieces."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    nbytes: int
    pieces: Pieces


def nbytes_of(shape: Sequence[int], format: str) -> int:
    """Bytes of a tensor in a block or float format."""
    if format in FORMATS:
        return prod(shape) // FORMATS[format].values * FORMATS[format].bytes
    return prod(shape) * (4 if format == "float32" else 2)


def write_gguf(
    path: Path,
    architecture: str,
    keys: Iterable[Key],
    tensors: Sequence[PlannedTensor],
    on_progress: OnProgress,
) -> None:
    """Write a file. It gets its name only when it is complete. `on_progress(done, total)` counts bytes.

    Raises OSError with the file's name if it cannot be written, FileExistsError if another process has
    created the file meanwhile.
    """
    from gguf import GGUFWriter

    partial = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    writer = GGUFWriter(partial, architecture)
    try:
        _write(writer, keys, tensors, on_progress)
        to_disk(partial)
        _publish(partial, path)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, f"{error.strerror}, while it was written", str(path)) from None
    finally:
        with contextlib.suppress(OSError):  # flushing the rest may fail again
            writer.close()
        partial.unlink(missing_ok=True)


def _write(
    writer: Any, keys: Iterable[Key], tensors: Sequence[PlannedTensor], on_progress: OnProgress
) -> None:
    from gguf import GGMLQuantizationType, GGUFValueType

    total = sum(tensor.nbytes for tensor in tensors)
    done = _CountingWriter(lambda n: on_progress(n, total))
    for key in keys:
        writer.add_key_value(key.name, key.value, *map(GGUFValueType, key.types))
    for tensor in tensors:
        kind = GGMLQuantizationType(tensor.ggml_type)
        # With a dtype other than uint8, the writer takes the shape as values, whatever the format.
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(_Data(tensor, done))
    writer.close()


def _publish(partial: Path, path: Path) -> None:
    """Rename `partial` to `path`, but never over a file that was written at the same time."""
    with contextlib.suppress(OSError):  # the file system has no hard links, or `path` exists
        os.link(partial, path)
        return
    if path.exists():
        raise FileExistsError(f"{path} was written by another process meanwhile, and is left unchanged")
    os.replace(partial, path)


class _CountingWriter:
    """Counts bytes and reports the total."""

    def __init__(self, tell: Callable[[int], None]):
        self._tell, self._total = tell, 0

    def add(self, count: int) -> None:
        self._total += count
        self._tell(self._total)


class _Data:
    """Stands for an array: the writer reads `nbytes` and calls `tofile`."""

    def __init__(self, tensor: PlannedTensor, done: _CountingWriter):
        self.nbytes = tensor.nbytes
        self._tensor, self._done = tensor, done

    def tofile(self, file: IO[bytes]) -> None:
        written = 0
        for piece in self._tensor.pieces():
            file.write(np.ascontiguousarray(piece).view(np.uint8).data)
            written += piece.nbytes
            self._done.add(piece.nbytes)
        if written != self.nbytes:
            raise RuntimeError(f"{self._tensor.name}: {written} bytes were written, expected {self.nbytes}")


def in_pieces(rows: int, row_values: int, most: int = 1 << 22) -> Iterator[slice]:
    """Slices of rows with at most `most` values each, but at least one row."""
    step = max(most // row_values, 1)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
