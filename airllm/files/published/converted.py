"""The file in the cache folder that holds the converted matrices of a folder.

It is a safetensors file, with blocks as bytes. Its name has a hash of the folder's files, so a folder that
changed is converted again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path

import numpy as np

from airllm.files.safetensors import SafetensorsFile
from airllm.files.smollm2 import ANOTHER_FOLDER, Unavailable, cache_dir
from airllm.files.weight_file import ModelFileError
from airllm.formats import FORMATS
from airllm.progress import progress, unseen
from airllm.readable import size
from airllm.writable import to_disk

FOLDER = "converted"
_VERSION = 1  # of what is written; a change converts all folders again
_ALIGNED = 64
_AT_ONCE = 1 << 20  # values that a thread converts at once
_SHOWN = 1 << 28  # bytes from which the progress is shown


def converted_copies() -> list[Path]:
    """All converted files in the cache folder."""
    try:
        return sorted((cache_dir() / FOLDER).glob("*.safetensors"))
    except Unavailable:
        return []


@dataclass(frozen=True)
class Place:
    """A tensor of the converted file: some rows of the matrix of that name, as a tensor of this shape."""

    matrix: str
    rows: slice
    shape: tuple[int, ...]
    format: str

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of the array in the file."""
        if self.format not in FORMATS:
            return self.shape
        of = FORMATS[self.format]
        return (*self.shape[:-1], self.shape[-1] // of.values * of.bytes)

    @property
    def dtype(self) -> str:
        return "U8" if self.format in FORMATS else "F16"

    @property
    def nbytes(self) -> int:
        return prod(self.stored_shape) * (1 if self.dtype == "U8" else 2)


@dataclass(frozen=True)
class Converted:
    """The converted file of a folder, whose tensors are in the files `shards`."""

    folder: Path
    shards: Sequence[Path]
    places: Mapping[str, Place]

    def open(self, blocks: Callable[[Place], Iterable[np.ndarray]]) -> SafetensorsFile:
        """The file, which is written first if it is not there: `blocks` yields a tensor's bytes. Raises
        ModelFileError for weights that are broken, and if there is no room for the file.
        """
        path = self.path()
        header, total = self._header()
        if not (path.is_file() and path.stat().st_size == total):
            self._write(path, header, total, blocks)
        return SafetensorsFile(path)

    def path(self) -> Path:
        """Where the file is, or will be."""
        try:
            folder = cache_dir() / FOLDER
        except Unavailable as error:
            raise ModelFileError(self.folder, "", f"cannot be converted: {error}") from None
        state = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in self.shards]
        what = json.dumps([_VERSION, state, [(n, p.shape, p.format) for n, p in self.places.items()]])
        name = self.folder.resolve().name
        return folder / f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:16]}.safetensors"

    def _header(self) -> tuple[bytes, int]:
        """The file's header with its length, and the size of the whole file."""
        at, entries = 0, {}
        for name, place in self.places.items():
            end = at + place.nbytes
            entries[name] = {"dtype": place.dtype, "shape": place.stored_shape, "data_offsets": [at, end]}
            at = _align(end)
        text = json.dumps(entries).encode()
        text += b" " * (_align(8 + len(text)) - 8 - len(text))
        return struct.pack("<Q", len(text)) + text, 8 + len(text) + at

    def _write(
        self, path: Path, header: bytes, total: int, blocks: Callable[[Place], Iterable[np.ndarray]]
    ) -> None:
        partial = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._check_room(path.parent, total)
            self._write_partial(partial, header, total, blocks)
            to_disk(partial)
            os.replace(partial, path)
        except OSError as error:
            found = f"cannot be converted: {path} was not written: {error.strerror or error}"
            raise ModelFileError(self.folder, "", f"{found}; {ANOTHER_FOLDER}") from error
        finally:
            partial.unlink(missing_ok=True)

    def _write_partial(
        self, partial: Path, header: bytes, total: int, blocks: Callable[[Place], Iterable[np.ndarray]]
    ) -> None:
        with partial.open("wb") as file, progress(f"Converting {self.folder.name}") as shown:
            tell = shown if total >= _SHOWN else unseen
            file.write(header)
            for place in self.places.values():
                for piece in blocks(place):
                    file.write(piece.data)
                    tell(file.tell(), total)
                file.write(bytes(_align(place.nbytes) - place.nbytes))

    def _check_room(self, folder: Path, total: int) -> None:
        free = shutil.disk_usage(folder).free
        if total > free:
            found = f"needs {size(total)} in {folder} for its converted weights, where {size(free)} are free"
            raise ModelFileError(self.folder, "", f"{found}; {ANOTHER_FOLDER}")


class ConvertedWeights(ABC):
    """A part of a weight file, whose matrices at `_places` are in a converted file. Classes say how."""

    path: Path
    _places: Mapping[str, Place]

    @abstractmethod
    def describe(self) -> list[str]:
        """What the matrices are stored as, what they are opened as, and how well that holds them."""

    @abstractmethod
    def _shard_paths(self) -> Sequence[Path]:
        """The files that have the matrices."""

    @abstractmethod
    def _convert(self, place: Place, rows: slice) -> np.ndarray:
        """The bytes of some rows of a matrix."""

    def converted_path(self) -> Path:
        """The file with the converted matrices."""
        return self._as_converted().path()

    def _as_converted(self) -> Converted:
        return Converted(self.path, self._shard_paths(), self._places)

    @cached_property
    def _converted(self) -> SafetensorsFile:
        with ThreadPoolExecutor() as self._pool:  # NumPy computes without the interpreter's lock
            return self._as_converted().open(self._blocks)

    def _converted_if_open(self) -> list[SafetensorsFile]:
        return [self._converted] if "_converted" in self.__dict__ else []

    def _blocks(self, place: Place) -> Iterator[np.ndarray]:
        """The bytes of a matrix, some rows at a time."""
        step = max(_AT_ONCE // place.shape[-1], 1)
        stop = place.rows.stop
        some = [slice(at, min(at + step, stop)) for at in range(place.rows.start, stop, step)]
        try:
            yield from self._pool.map(partial(self._convert, place), some)
        except ValueError as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(self.path, f"tensor {place.matrix}", str(error)) from None


def _align(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED
