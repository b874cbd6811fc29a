"""The file of results: whole lines are appended, and flushed to the disk. One process writes it at a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec

from airllm.batch.requests_file import BatchFileError
from airllm.memory import file_lock

_BEGIN = b'{"id":"batch_req_'  # of every line, by which one that was cut off is known


class Response(msgspec.Struct):
    """What the app answered. `body` is its JSON."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class Result(msgspec.Struct):
    """A line. `error` is for requests that got no answer; here all get one."""

    id: str
    custom_id: str
    response: Response
    error: None = None


class _Status(msgspec.Struct):
    status_code: int


class _Answered(msgspec.Struct):
    custom_id: str
    response: _Status


class ResultsFile:
    """Opens or creates the file. `done` has the `custom_id`s of its results; `failed` counts those whose
    status is not 200.

    A last line that was cut off, by a kill or a full disk, is removed. Raises BatchFileError for any other
    line that is not a result of a request among `expected`, or if another process writes the file.
    """

    def __init__(self, path: Path, expected: Collection[str]):
        self.path, self.done, self.failed, self._size = path, set[str](), 0, 0
        is_new = not path.exists()
        self._file: BinaryIO = open(path, "a+b", buffering=0)  # noqa: SIM115  # closed by __exit__
        try:
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise BatchFileError(f"{path} is not a file, and results can be read again only from one")
            _lock(self._file, path)
            self._read(expected)
            if is_new:
                _flush_folder(path)
        except BaseException:
            self._file.close()
            raise

    def _read(self, expected: Collection[str]) -> None:
        """Read whole lines, and remove what follows them."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return self._remove(line, number)
                found = self._check(line, number, expected)
                self._count(found.custom_id, found.response.status_code)
                self._size += len(line)

    def _count(self, id: str, status: int) -> None:
        self.done.add(id)
        self.failed += status != 200

    def _check(self, line: bytes, number: int, expected: Collection[str]) -> _Answered:
        try:
            found = msgspec.json.decode(line, type=_Answered)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BatchFileError(
                f"{self.path}: line {number} is not a result of a batch: {error}. Name a new file, or one "
                "with results of these requests"
            ) from None
        if found.custom_id not in expected or found.custom_id in self.done:
            why = "which no request has" if found.custom_id not in expected else "as a line before"
            raise BatchFileError(f"{self.path}: line {number} has custom_id {found.custom_id!r:.100}, {why}")
        return found

    def _remove(self, rest: bytes, number: int) -> None:
        begun = rest.rstrip(b"\0")  # some file systems leave zeros after a power failure
        if begun[: len(_BEGIN)] != _BEGIN[: len(begun)]:
            raise BatchFileError(f"{self.path}: line {number} is not a result of a batch, and has no end")
        os.ftruncate(self._file.fileno(), self._size)
        os.fsync(self._file.fileno())

    def append(self, results: Sequence[Result]) -> None:
        """Write results, which are on the disk then: all, or after an OSError none of them."""
        lines = memoryview(b"".join(msgspec.json.encode(each) + b"\n" for each in results))
        written = 0
        try:
            while written < len(lines):
                written += os.write(self._file.fileno(), lines[written:])
            os.fsync(self._file.fileno())
        except OSError as error:
            os.ftruncate(self._file.fileno(), self._size)
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self._size += written
        for each in results:
            self._count(each.custom_id, each.response.status_code)

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _lock(file: BinaryIO, path: Path) -> None:
    """Hold the file until it is closed, or this process ends."""
    try:
        file_lock.lock(file)
    except OSError as error:
        raise BatchFileError(f"{path} is being written by another process ({error.strerror})") from None


def _flush_folder(path: Path) -> None:
    """The name of a new file is on the disk only with its folder."""
    if os.name == "posix":
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
