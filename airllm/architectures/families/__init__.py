"""All architectures: each `Architecture` that a module of this package declares, a family a module."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from airllm.architectures.declaration import Architecture
from airllm.architectures.values import Values


@cache
def all_architectures() -> tuple[Architecture, ...]:
    """All architectures by name. The variants of a GGUF architecture, for folders only, follow it."""
    found: dict[int, Architecture] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        values = vars(importlib.import_module(module.name)).values()
        found |= {id(value): value for value in values if isinstance(value, Architecture)}
    return tuple(sorted(found.values(), key=lambda each: (each.name, not each.in_gguf, each.title)))


def architecture_of_gguf(name: str) -> Architecture | None:
    """The architecture that has this name in GGUF files; None if there is none."""
    return next((each for each in all_architectures() if each.in_gguf and each.name == name), None)


def architecture_named(name: str) -> Architecture:
    """The GGUF architecture of this name, which stands for its variants. Raises KeyError."""
    found = architecture_of_gguf(name)
    if found is None:
        raise KeyError(name)
    return found


def architecture_of_model_type(name: str) -> Architecture | None:
    """The architecture of this model_type in config.json; None if there is none."""
    return next((each for each in all_architectures() if name in each.model_types), None)


def marked_architecture(name: str, values: Values) -> Architecture | None:
    """The architecture of the folders of this model_type whose config.json has its mark."""
    marked = ((each, each.marked_by) for each in all_architectures() if each.marked_by)
    return next((each for each, mark in marked if mark[0] == name and _is_marked(values, mark[1])), None)


def _is_marked(values: Values, mark: str | Callable[..., bool]) -> bool:
    return values.raw(mark) not in (None, False) if isinstance(mark, str) else mark(values)


def strips_after_control(name: str) -> bool:
    """Whether a GGUF file of this general.name, in lower case, has white space after control tokens stripped.
    No key of the file says so.
    """
    return any(part in name for each in all_architectures() for part in each.stripped_names)


def with_part(name: str) -> list[Architecture]:
    """The architectures that models of this type have as `text_config`."""
    return [each for each in all_architectures() if name in each.parts_of]


def gguf_architectures() -> list[str]:
    """`general.architecture` of all supported GGUF files."""
    return [each.name for each in all_architectures() if each.in_gguf]


def types_of_folders() -> list[str]:
    """`model_type` in config.json of all supported folders."""
    return list(dict.fromkeys(name for each in all_architectures() for name in model_types_of(each)))


def table() -> list[tuple[str, str, str]]:
    """Title, model types and GGUF name of each architecture, for people."""
    return [
        (each.title, ", ".join(f"`{name}`" for name in model_types_of(each)) or "-", f"`{each.name}`")
        for each in all_architectures()
    ]


def model_types_of(architecture: Architecture) -> list[str]:
    """The model types that people know. For a text part, it is the type of the whole model."""
    if architecture.marked_by:
        return [architecture.marked_by[0]]
    own = [name for name in architecture.model_types if not name.endswith("_text")]
    return [*own, *(name for name in architecture.parts_of if name not in own)]
