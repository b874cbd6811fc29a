"""editable_wheel: what `pip install -e` puts into an environment, as plain entries of the path.

setuptools would put a finder there, because the packages lie in two folders. Such a finder comes after the
path's own, which takes a folder `airllm`, as a clone is called, for a namespace package where a program runs
beside it; and type checkers do not ask it. Entries of the path do for both: a package there wins.
"""

import locale
import sys
from pathlib import Path
from typing import Any

from . import probes

PATH = (probes.CHECKOUT, probes.CPP_EXT)  # airllm; the modules tensor_ops_*


class PathEntries:
    """A strategy of setuptools' editable_wheel: see `EditableStrategy` there."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, wheel: Any, files: list[str], mapping: Any) -> None:
        wheel.writestr(f"__editable__.{self.name}.pth", text_of(PATH))

    def __enter__(self) -> "PathEntries":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


def text_of(entries: tuple[Path, ...]) -> bytes:
    """A file that the module `site` reads: before Python 3.13 in the encoding of the locale."""
    encoding = "utf-8" if sys.version_info >= (3, 13) else locale.getpreferredencoding(False)
    return "".join(f"{entry}\n" for entry in entries).encode(encoding)


def from_setuptools(base: type) -> type:
    """The setuptools command; `base` is setuptools' own."""

    class EditableWheel(base):
        def _select_strategy(self, name: str, tag: str, build_lib: Any) -> PathEntries:
            return PathEntries(f"{name}-{tag}")

    EditableWheel.__name__ = "editable_wheel"
    return EditableWheel
