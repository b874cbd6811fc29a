"""Stamps tell whether a module is up to date; file times do not show changes of flags and compilers.

A module's stamp records what it was built from. It is in build/stamps/, since files next to a module would go
into the wheel. If something else has written the module since, its stamp does not match.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from . import probes

FOLDER = probes.CHECKOUT / "build" / "stamps"


def digest(recipe: Iterable[str], files: Iterable[Path] = ()) -> str:
    """A hash of a recipe's words and the files' times; the location of the checkout does not count."""
    times = (f"{path} {path.stat().st_mtime_ns}" for path in sorted(files))
    return hashlib.sha256(_placeless("\n".join([*recipe, *times]))).hexdigest()


def is_current(target: Path, made_of: str) -> bool:
    """Whether `target` exists unchanged since `keep(target, made_of)` was called."""
    try:
        return _file(target).read_text() == _stamp(target, made_of)
    except FileNotFoundError:
        return False


def keep(target: Path, made_of: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    _file(target).write_text(_stamp(target, made_of))


def _stamp(target: Path, made_of: str) -> str:
    return f"{made_of} {target.stat().st_mtime_ns}\n"


def _file(target: Path) -> Path:
    place = hashlib.sha256(_placeless(str(target.parent.resolve()))).hexdigest()[:12]
    return FOLDER / f"{target.name}-{place}"


def _placeless(text: str) -> bytes:
    return text.replace(str(probes.CHECKOUT), "").encode()
