"""JSON files that people may edit: errors name file and line, and writes are atomic.

Standard library only.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from airllm.backends.config_schema import ConfigError, Wrong, format_value


def read(path: Path, expected: str) -> tuple[dict[str, Any], str]:
    """The values of a file and its text; ConfigError if it cannot be read, or is not a JSON object.

    `expected` describes the object in that error.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text ({error.reason})"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    return _parse(path, text, expected), text


def _parse(path: Path, text: str, expected: str) -> dict[str, Any]:
    try:
        values = json.loads(text, object_pairs_hook=_refuse_repeated)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from None
    except Wrong as wrong:
        line = text.count("\n", 0, text.rfind(json.dumps(wrong.item))) + 1
        raise ConfigError(f"{path}:{line}: {wrong}") from None
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested too deeply: {error}") from None
    except ValueError as error:  # a number with more digits than Python accepts
        raise ConfigError(f"{path}: is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: has {format_value(values)}, expected an object with {expected}")
    return values


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        key = find_repeated(key for key, _ in pairs)
        raise Wrong(key, f"has the key {key!r} twice, expected it once")
    return found


def find_repeated(names: Iterable[str]) -> str | None:
    """The first name that repeats an earlier one."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def line_of(text: str, *keys: str | int, item: Any = None) -> int:
    """The line of a value in valid JSON, given its path of keys and list indices, or of the string `item` in
    that value. If it is missing, the line of the innermost value found.
    """
    offset = 0
    for key in keys if text else ():
        offset = _members(text, offset).get(key, offset)
    if isinstance(item, str):
        offset = max(offset, text.find(json.dumps(item), offset))
    return text.count("\n", 0, offset) + 1


def _members(text: str, at: int) -> dict[str | int, int]:
    """The offset of each value of the object or list at offset `at`, by key or index."""
    decode = json.JSONDecoder().raw_decode
    offsets: dict[str | int, int] = {}
    at = _skip(text, at, "")
    if text[at] not in "{[":
        return offsets
    is_object, at = text[at] == "{", _skip(text, at + 1, "")
    while text[at] not in "}]":
        key: str | int = len(offsets)
        if is_object:
            key, at = decode(text, at)
            at = _skip(text, at, ":")
        offsets[key] = at
        at = _skip(text, decode(text, at)[1], ",")
    return offsets


def _skip(text: str, at: int, mark: str) -> int:
    """The offset after whitespace and the mark."""
    while text[at] in " \t\r\n" + mark:
        at += 1
    return at


def text_of(values: dict[str, Any]) -> str:
    """The file text of these values."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def one_writer(path: Path) -> Iterator[None]:
    """Lock the folder of `path` against other processes and threads that use this lock, so that a read,
    change and write loses no other change. It locks the folder itself, to leave no lock file. It locks
    nothing on systems that cannot lock folders (Windows, some network file systems).
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            folder = os.open(path.parent, os.O_RDONLY)
            held.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield


def write(path: Path, text: str) -> None:
    """Replace a file; readers see the old or the new one, never a part. ConfigError if writing fails."""
    try:
        _replace(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    """Write a temporary file next to `path`, sync it to disk, and rename it to `path`."""
    half = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        # JSON strings may have an unpaired surrogate: write it as JSON's escape, "\\ud800"
        with open(half, "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            half.chmod(path.stat().st_mode & 0o7777)
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)
