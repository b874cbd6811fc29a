"""Whether a module is what its build would make now: flags and compilers leave no trace in times alone.

A module's stamp says what it was made of. It lies in build/stamps/: what lies beside a module goes into the
wheel. A module that something else has written since does not fit its stamp either.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from . import probes

FOLDER = probes.CHECKOUT / "build" / "stamps"


def digest(recipe: Iterable[str], files: Iterable[Path] = ()) -> str:
    """Of a recipe's words and the files' times. Where the checkout lies does not count."""
    times = (f"{path} {path.stat().st_mtime_ns}" for path in sorted(files))
    return hashlib.sha256(_placeless("\n".join([*recipe, *times]))).hexdigest()


def is_current(target: Path, made_of: str) -> bool:
    """Whether `target` is there, as it was when `keep(target, made_of)` was called."""
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
