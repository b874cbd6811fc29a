"""The interface of weight files: names, tensors as views of mapped memory, and their bytes in the file."""

from __future__ import annotations

import json
import mmap
import os
import re
import weakref
from collections.abc import Iterable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np

from airllm.backends.json_file import find_repeated
from airllm.formats import Quantized
from airllm.readable import escape_controls

Stored = np.ndarray | Quantized
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


class ModelFileError(ValueError):
    """A file that is broken or unsupported. The message names the file, the place in it, what was found and
    what was expected.
    """

    def __init__(self, path: str | PathLike[str], place: str, found: str, expected: str = ""):
        where = f"{path}: {_short(place)}" if place else str(path)
        expected = f", expected {escape_controls(expected)}" if expected else ""
        super().__init__(f"{where} {_short(found)}{expected}")
        self.path = Path(path)
        self.place = place


def _short(text: str, most: int = 200) -> str:
    """Shorten a text with content of a file, which may be a megabyte."""
    return escape_controls(text if len(text) <= most else text[:most] + "...")


class FileMap(mmap.mmap):
    """A file, mapped read-only. `descriptor` stays open as long as the map, to give advice on the file."""

    descriptor: int


class Span(NamedTuple):
    """The bytes of a tensor: its map, offset and size. For prefetch and release."""

    map: FileMap
    start: int
    nbytes: int


class WeightFile(Protocol):
    """The tensors of a model: a `GgufFile` or a `SafetensorsFolder`."""

    path: Path

    def names(self) -> list[str]:
        """Names of all tensors."""

    def tensor(self, name: str) -> Stored:
        """A read-only view of the mapped file. ModelFileError for an unknown name."""

    def span(self, name: str) -> Span:
        """The tensor's bytes in its map."""

    def maps(self) -> list[FileMap]:
        """The maps of the files that are open, including those without tensors."""

    def close(self) -> None:
        """Close the file. Arrays that are still held stay valid and keep their map."""

    def __contains__(self, name: str) -> bool: ...

    def __enter__(self) -> WeightFile: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def model_path(path: str | PathLike[str]) -> Path:
    """The path of a GGUF file or Hugging Face folder. For a folder without safetensors, it is that of the
    GGUF file in it, or of its first part. Raises ModelFileError if there are several models.
    """
    path = Path(path)
    if not path.is_dir() or any(path.glob("model*.safetensors*")):
        return path
    found = name_models(file.name for file in path.glob("*.gguf") if is_text_model(file.name))
    if len(found) > 1:
        expected = f"one, or the path of one of them, such as {path / found[0]}"
        raise ModelFileError(path, "", f"holds the GGUF files {first_names(found)}", expected)
    return path / found[0] if found else path


def is_text_model(name: str) -> bool:
    """Whether a GGUF file of this name is a model, not only the vision part of one."""
    return "mmproj" not in name


def name_models(names: Iterable[str]) -> list[str]:
    """A name for each model among GGUF files: that of a whole file, or of the first of its parts."""
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (bool(_PART.search(name)), name)):
        found.setdefault(_PART.sub(".gguf", name), name)
    return sorted(found.values())


def name_all_parts(name: str) -> list[str]:
    """The names of all parts, given that of one; the name alone if it is that of a whole file."""
    match = _PART.search(name)
    if match is None:
        return [name]
    return [f"{name[: match.start()]}-{i:05}-of-{match[1]}.gguf" for i in range(1, int(match[1]) + 1)]


def map_file(path: Path) -> FileMap:
    """Map the file read-only. OSError if it cannot be opened, ModelFileError if it is empty.

    Asks for huge pages, before the first byte is read: they cost a fraction to bring in, use and release.
    """
    with path.open("rb") as file:
        try:
            map = FileMap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # the file is empty
            raise ModelFileError(path, "", "is empty") from None
        map.descriptor = os.dup(file.fileno())
        weakref.finalize(map, os.close, map.descriptor)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the kernel does not support it
            map.madvise(mmap.MADV_HUGEPAGE)
    return map


def unmap(map: mmap.mmap) -> None:
    """Close the map. If arrays still refer to it, it is closed with the last of them."""
    with suppress(BufferError):
        map.close()


def first_names(names: Iterable[str], most: int = 8) -> str:
    """The first `most` names, and how many more there are, for a message."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. OSError if it cannot be opened, ModelFileError if it is not an object."""
    return parse_json(path, path.read_bytes())


def parse_json(path: Path, text: bytes, place: str = "") -> dict[str, Any]:
    """The JSON object in the `text` of a file. ModelFileError, also for a repeated name."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = find_repeated(name for name, _ in pairs)
            raise ModelFileError(path, place, f"has {twice!r} twice", "each name once")
        return found

    try:
        value = json.loads(text, object_pairs_hook=once)
    except ModelFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, place, f"is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelFileError(path, place, f"holds a {type(value).__name__}", "a JSON object")
    return value
