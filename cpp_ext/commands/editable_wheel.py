"""editable_wheel: make `pip install -e` install plain path entries.

setuptools would install a finder, because the packages are in two folders. Such a finder runs after the
standard one, which takes a clone's folder `airllm` for a namespace package if a program runs next to it; and
type checkers ignore the finder. Path entries solve both: a package on the path takes precedence.
"""

import locale
import sys
from pathlib import Path
from typing import Any

from . import probes

PATH = (probes.CHECKOUT, probes.CPP_EXT)  # airllm; the modules tensor_ops_*


class PathEntries:
    """A strategy for setuptools' editable_wheel: see `EditableStrategy` there."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, wheel: Any, files: list[str], mapping: Any) -> None:
        wheel.writestr(f"__editable__.{self.name}.pth", text_of(PATH))

    def __enter__(self) -> "PathEntries":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


def text_of(entries: tuple[Path, ...]) -> bytes:
    """The text of the path file for `site`, which reads it in the locale's encoding before Python 3.13."""
    encoding = "utf-8" if sys.version_info >= (3, 13) else locale.getpreferredencoding(False)
    return "".join(f"{entry}\n" for entry in entries).encode(encoding)


def from_setuptools(base: type) -> type:
    """The setuptools command; `base` is that of setuptools."""

    class EditableWheel(base):
        def _select_strategy(self, name: str, tag: str, build_lib: Any) -> PathEntries:
            return PathEntries(f"{name}-{tag}")

    EditableWheel.__name__ = "editable_wheel"
    return EditableWheel
