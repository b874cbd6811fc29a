"""The adapters of an engine: those that are loaded, and the scale of each, which may change at any time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from airllm.engine.adapters.adapter import Adapter, open_adapter
from airllm.engine.model import Model
from airllm.engine.sampling import is_finite

Given = Any  # a path, (path, scale), or several of them


class Adapters:
    """Adapters by name."""

    def __init__(self) -> None:
        self._loaded: dict[str, Adapter] = {}
        self.scales: dict[str, float] = {}

    def load(self, model: Model, path: str | PathLike[str], name: str | None = None) -> str:
        """Read an adapter of this model, which is not used yet. Returns its name: by default that of the
        folder, or of the file without its end. Raises what `open_adapter` raises, and ValueError for a name
        that is taken.
        """
        name = name if name is not None else _name(Path(path))
        if name in self._loaded:
            raise ValueError(f"adapter has the name {name!r} twice, expected another name for {fspath(path)}")
        self._loaded[name] = open_adapter(path, model.tensors)
        self.scales[name] = 0.0
        return name

    def use(self, model: Model, scales: Mapping[str, float]) -> None:
        """Have the model use these adapters, each times its scale, and no others. Raises ValueError for an
        unknown name.
        """
        for name, scale in scales.items():
            if name not in self._loaded:
                known = ", ".join(self._loaded) or "none: load one with load_adapter"
                raise ValueError(f"adapters has the name {name!r}, expected of {known}")
            if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not is_finite(scale):
                raise ValueError(
                    f"the scale of adapter {name!r} has value {scale!r}, expected a finite number"
                )
        self.scales = {name: float(scales.get(name, 0.0)) for name in self._loaded}
        used = [(self._loaded[name], scale) for name, scale in self.scales.items() if scale]
        model.adapt(used)


def parse_given(given: Given) -> list[tuple[str | PathLike[str], float]]:
    """Paths with scales, of what was given as `adapter=`."""
    if given is None:
        return []
    if isinstance(given, (str, PathLike)):
        return [(given, 1.0)]
    if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[1], (str, PathLike)):
        return [(given[0], given[1])]
    if isinstance(given, Iterable):
        return [each for some in given for each in parse_given(some)]
    raise TypeError(
        f"adapter has type {type(given).__name__}, expected a path, (path, scale) or a list of them"
    )


def _name(path: Path) -> str:
    return path.resolve().name if path.is_dir() else path.stem
