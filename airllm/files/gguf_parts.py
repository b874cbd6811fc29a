"""The parts of a model that is split into several GGUF files: their paths, and the checks that they fit.

Part i of n has both numbers in its name, with i from 1, and in its keys, with i from 0. Every part lists its
own tensors; only the first one has the model's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from airllm.files.weight_file import ModelFileError, first_names, name_all_parts

_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"


class Part(Protocol):
    """An opened file, with its own keys and tensors."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def tensors(self) -> Mapping[str, Any]: ...


def locate_parts(given: Part) -> list[Path]:
    """The paths of all parts, given one of them. ModelFileError if some are missing, or the names are not
    those of parts.
    """
    count = _number(given, _COUNT, 1)
    if count < 2:  # 0 if parts were joined
        return [given.path]
    paths = [given.path.with_name(name) for name in name_all_parts(given.path.name)]
    if len(paths) != count:
        expected = f"{len(paths)}, by the file's name"
        raise ModelFileError(given.path, f"key {_COUNT}", f"has value {count}", expected)
    if missing := [path.name for path in paths if not path.is_file()]:
        found = f"is one of {count} parts and lacks {first_names(missing)}"
        raise ModelFileError(given.path, "", found, f"all parts in {given.path.parent}")
    return paths


def check_parts(parts: Sequence[Part]) -> None:
    """Raise ModelFileError unless these are all parts of one model, in order."""
    tensors = _count_tensors(parts)
    for index, part in enumerate(parts):
        for key, expected in ((_COUNT, len(parts)), (_NUMBER, index), (_TENSORS, tensors)):
            if (value := _number(part, key, None)) != expected:
                raise ModelFileError(part.path, f"key {key}", f"has value {value}", f"{expected}")


def _count_tensors(parts: Sequence[Part]) -> int:
    """The number of tensors in all parts. ModelFileError if one is in two parts."""
    where: dict[str, Path] = {}
    for part in parts:
        for name in part.tensors:
            if name in where:
                found, expected = f"is also in {where[name].name}", "each tensor in one part"
                raise ModelFileError(part.path, f"tensor {name}", found, expected)
            where[name] = part.path
    return len(where)


def _number(part: Part, key: str, default: int | None) -> int:
    value = part.metadata.get(key, default)
    if type(value) is not int or value < 0:
        raise ModelFileError(part.path, f"key {key}", f"has value {value!r}", "a whole number")
    return value
