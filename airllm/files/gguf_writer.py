"""Writing GGUF files with the package `gguf`: tensors go to disk piece by piece, as they are made."""

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

# GGUF's numbers for the types of values.
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = (4,), (5,), (6,), (7,), (8,), (9,)

# How ggml numbers the types of tensors that are no blocks.
FLOATS = {"float32": 0, "float16": 1, "bfloat16": 30}


@dataclass(frozen=True)
class Key:
    """A key of the metadata. `types` are GGUF's numbers: of the value, and of its items if it is a list."""

    name: str
    value: Any
    types: tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """A tensor that is there, under its GGUF name: `parts` give its values, in order along the first axis."""

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int
    parts: Callable[[], Iterable[Stored]]

    @classmethod
    def of(cls, name: str, stored: Stored, parts: Callable[[], Iterable[Stored]]) -> Source:
        """One as large as `stored`, and in its format."""
        format = stored.format if isinstance(stored, Quantized) else str(stored.dtype)
        return cls(name, stored.shape, format, stored.nbytes, parts)


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to write: what the header says of it, and its data, in pieces that lie one after the other."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    nbytes: int
    pieces: Pieces


def nbytes_of(shape: Sequence[int], format: str) -> int:
    """What a tensor takes in a format of blocks or floats."""
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
    """Write a file, which has its name only when it is whole. `on_progress` is told of bytes. OSError with
    the file's name where it cannot be written, FileExistsError if another has taken the name meanwhile.
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
        with contextlib.suppress(OSError):  # of what was still to be written
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
        # a dtype that is not uint8: the shape is in values, whatever the format
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(_Data(tensor, done))
    writer.close()


def _publish(partial: Path, path: Path) -> None:
    """Never in place of another file, which may have been written at the same time."""
    with contextlib.suppress(OSError):  # a file system without links, or there is such a file
        os.link(partial, path)
        return
    if path.exists():
        raise FileExistsError(f"{path} was written by another meanwhile, which is left as it is")
    os.replace(partial, path)


class _CountingWriter:
    """Tells how many bytes there were in all."""

    def __init__(self, tell: Callable[[int], None]):
        self._tell, self._total = tell, 0

    def add(self, count: int) -> None:
        self._total += count
        self._tell(self._total)


class _Data:
    """What the writer takes for an array: it asks how large it is, and to be written."""

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
            raise RuntimeError(f"{self._tensor.name}: {written} bytes were made, expected {self.nbytes}")


def in_pieces(rows: int, row_values: int, most: int = 1 << 22) -> Iterator[slice]:
    """Rows in runs of at most so many values, at least one row each."""
    step = max(most // row_values, 1)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
