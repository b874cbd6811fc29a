"""A KV cache in a file. The sequence continues when the file is opened again.

The file has a header, the token ids, and the arrays of `CacheLayout`. The header
identifies the model and everything else that the cache depends on, and has the number of valid tokens. That
number is written last, so the process may end at any moment. To survive a power failure, call `flush`.
While the layers are on a device, what a pass appends there is copied to the file too.

All disk space is allocated before the file is mapped, and the header is written last: writing to a map
without disk space would end the process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import struct
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from airllm.architectures.model_config import ModelConfig
from airllm.memory import file_lock
from airllm.memory.device_cache import fetch_rows
from airllm.memory.kv_cache import Cache

SUFFIX = ".kv"
_MAGIC, _VERSION = b"airllmKV", 3
_START = struct.Struct("<8sII")  # magic, version, bytes of the identity
# Number of tokens; whether their keys have the angles of a long text; how many layers with a window lack;
# which recurrent states are valid: the bits of the current one, those of the marked one, and its length.
_LENGTH = struct.Struct("<QQQQ")
_LENGTH_AT, _IDENTITY_AT, _HEADER = 16, 48, 4096
_NO_TOKENS = _LENGTH.pack(0, False, 0, 0)
_ZEROS = bytes(1 << 20)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # on file systems that cannot preallocate


class CacheFileError(ValueError):
    """A cache file that is broken, in use, or of another model."""

    def __init__(self, path: Path, found: str, expected: str):
        super().__init__(f"{path} {found}, expected {expected}: remove it or take another name")
        self.path = path


class FileCache(Cache):
    """A `Cache` in the file `name` of a folder. The file is created if it does not exist; otherwise its
    sequence continues. Without a name, the file is deleted with the cache.

    `whose` is the model's `fingerprint`. Raises CacheFileError for a file that does not fit, ValueError for
    an invalid name, and OSError, also if the disk has no room for the whole file.
    """

    def __init__(
        self, config: ModelConfig, capacity: int, dtype: str, folder: Path, name: str | None, whose: str
    ):
        if name is not None and (not name or Path(name).name != name or name[0] == "." or "\0" in name):
            raise ValueError(f"name of a cache has value {name!r}, expected a file's name, without folders")
        self.path, self._whose = folder / f"{name or 'unnamed'}{SUFFIX}", whose
        self._named = name is not None
        folder.mkdir(parents=True, exist_ok=True)
        self._file: Any = _open_locked(self.path) if name else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        super().__init__(config, capacity, dtype, windowed=True)
        self._ids = np.frombuffer(self._map, "<i4", capacity, _HEADER)
        length, long, dropped, states = _LENGTH.unpack_from(self._map, _LENGTH_AT)
        if length > capacity:
            raise CacheFileError(self.path, f"has {length} tokens", f"at most {capacity}, its capacity")
        ids = self._ids[:length]
        if length and not 0 <= ids.min() <= ids.max() < config.vocabulary:
            found = f"has tokens from {ids.min()} to {ids.max()}"
            raise CacheFileError(self.path, found, f"0 to {config.vocabulary - 1}")
        if not self._may_lack(dropped, length):
            raise CacheFileError(self.path, f"lacks the first {dropped} of {length} tokens", "fewer")
        super().extend(ids.tolist())
        self.long, self.dropped = bool(long), dropped
        if not self.recurrent.restore(states, length):
            raise CacheFileError(self.path, f"has state {states:#x} of {length} tokens", "another")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.path}>"

    def extend(self, tokens: list[int]) -> None:
        if self.on_device():
            fetch_rows(self, len(tokens))
        if self.recurrent.on_device():
            self.recurrent.fetch(self.recurrent.next)
        self._ids[self.length : self.length + len(tokens)] = tokens
        super().extend(tokens)
        self._write_length()

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self._write_length()

    def mark(self) -> None:
        super().mark()
        self._write_length()

    def flush(self) -> None:
        """Wait until everything is on the disk."""
        self._map.flush()

    def _drop(self, dropped: int) -> None:
        """If the process ends meanwhile, the file has no tokens."""
        _LENGTH.pack_into(self._map, _LENGTH_AT, 0, False, 0, 0)
        there = set(self.on_device())
        copies = [layer for i, layer in self.host_layers().items() if i in there and layer.is_ring]
        self._move_runs(copies, dropped)
        super()._drop(dropped)
        self._write_length()

    def fetch_layers(self) -> None:
        """Keep keys, values and states in the file alone from now on: it has them."""
        self._of_layer = self.host_layers()
        self.recurrent.leave_device(fetched=True)

    def _write_length(self) -> None:
        state = self.recurrent.word
        _LENGTH.pack_into(self._map, _LENGTH_AT, self.length, self.long, self.dropped, state)

    def _allocate(self, nbytes: int) -> tuple[mmap.mmap, int]:
        start = _HEADER + -(-4 * self.capacity // _HEADER) * _HEADER
        identity = self._identity()
        if not self._header().strip(b"\0"):  # the file is new, or its creation was interrupted
            self._make(start + nbytes, identity)
        self._check(start + nbytes, identity)
        return mmap.mmap(self._file.fileno(), start + nbytes), start

    def _make(self, nbytes: int, identity: bytes) -> None:
        """Create a file without tokens. If the disk has no room for it, no file remains."""
        try:
            self._file.truncate(0)
            _reserve(self._file, nbytes)
            self._file.seek(0)
            self._file.write(_START.pack(_MAGIC, _VERSION, len(identity)) + _NO_TOKENS + identity)
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.close()
            if self._named:
                self.path.unlink(missing_ok=True)
            why = f"{error.strerror}, for a cache of {nbytes} bytes"
            raise OSError(error.errno, why, str(self.path)) from None

    def _header(self) -> bytes:
        self._file.seek(0)
        return self._file.read(_HEADER)

    def _check(self, nbytes: int, identity: bytes) -> None:
        found, header = self._file.seek(0, 2), self._header()
        if header[: len(_MAGIC)] != _MAGIC:
            raise CacheFileError(self.path, f"begins with {header[:8]!r}", f"{_MAGIC!r}: not a cache file")
        if len(header) < _IDENTITY_AT:
            raise CacheFileError(self.path, f"has {found} bytes", f"{nbytes}")
        _, version, length = _START.unpack_from(header)
        if version != _VERSION:
            raise CacheFileError(self.path, f"has version {version}", f"{_VERSION}")
        its = header[_IDENTITY_AT : _IDENTITY_AT + length]
        if its != identity:
            raise CacheFileError(self.path, f"belongs to {_text(its)}", _text(identity))
        if found != nbytes:
            raise CacheFileError(self.path, f"has {found} bytes", f"{nbytes}")

    def _identity(self) -> bytes:
        c = self.config
        sizes = {"layers": c.layers, "kv_heads": c.kv_heads, "head_dim": c.head_dim}
        what = {"architecture": c.architecture, **sizes, "capacity": self.capacity, "dtype": self.dtype}
        return json.dumps({**what, "model": self._whose}).encode()


def _open_locked(path: Path) -> BinaryIO:
    """Open a file with an exclusive lock."""
    while True:
        path.touch()
        with contextlib.ExitStack() as undo:
            file = undo.enter_context(path.open("r+b"))
            try:
                file_lock.lock(file)
            except OSError:
                raise CacheFileError(path, "is in use", "a file that no other cache has open") from None
            # Another process may have removed the file meanwhile, because it could not create it.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                undo.pop_all()
                return file


def _reserve(file: BinaryIO, nbytes: int) -> None:
    """Fill a new file with `nbytes` zeros. OSError, such as ENOSPC, if the disk has no room for them."""
    if hasattr(os, "posix_fallocate"):
        try:
            return os.posix_fallocate(file.fileno(), 0, nbytes)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
    file.seek(0)
    for at in range(0, nbytes, len(_ZEROS)):
        file.write(_ZEROS[: nbytes - at])
    file.flush()


def _text(identity: bytes) -> str:
    return identity[:400].decode(errors="replace")
