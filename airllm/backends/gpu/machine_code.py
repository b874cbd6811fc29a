"""The machine code of the shared kernels, compiled once for a GPU and kept in the cache folder."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from airllm.backends.gpu.kernel_text import text
from airllm.cache_folder import cache_folder

_FOLDER = "kernels"
_DIGEST = hashlib.sha256().digest_size


@functools.cache
def machine_code(compile_text: Callable[[str, str], bytes], family: str, arch: str) -> bytes:
    """The kernels of a family for an architecture. Some families take a compiler half a minute."""
    source = text("gpu", family)
    path = _file(hashlib.sha256(f"{arch}\n{source}".encode()).hexdigest()[:32])
    code = _read(path)
    if code is None:
        code = compile_text(source, arch)
        _write(path, code)
    return code


def _file(name: str) -> Path | None:
    try:
        return cache_folder() / _FOLDER / f"{name}.bin"
    except RuntimeError:  # the user has no home
        return None


def _read(path: Path | None) -> bytes | None:
    """What a file has behind its digest; None if it is not there, or not whole."""
    try:
        content = path.read_bytes() if path else b""
    except OSError:
        return None
    code = content[_DIGEST:]
    return code if code and hashlib.sha256(code).digest() == content[:_DIGEST] else None


def _write(path: Path | None, code: bytes) -> None:
    """Write a file at once. Where it cannot be written, the next process compiles again."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(file.name, path)
    except OSError:
        pass
