"""Reads a file of requests: one JSON object a line, with `custom_id`, `method`, `url` and `body`.

The whole file is checked before a model is opened. Bodies are not: the app checks each, and refuses it alone.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO

from msgspec import Meta, Raw, Struct

from airllm.serving.protocol.decode import decode
from airllm.serving.protocol.errors import ApiError, invalid

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
_SHOWN = 5  # problems that an error tells


class BatchFileError(ValueError):
    """A file of requests or of results is not what was expected. The message has the numbers of lines."""


class _Line(Struct, forbid_unknown_fields=True):
    custom_id: Annotated[str, Meta(min_length=1)]
    method: str
    url: str
    body: Raw


class _Body(Struct):
    """What is looked at before the app sees a body."""

    model: Any = None
    stream: Any = None


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Where a request is: its line, from 1, and the line's bytes in the file."""

    custom_id: str
    url: str
    line: int
    start: int
    stop: int


class RequestsFile:
    """The requests of a file, which stays open. Raises BatchFileError unless all lines are requests with
    `custom_id`s of their own, OSError for a file that cannot be read.

    `models` maps the names that bodies ask for to the first line with each.
    """

    def __init__(self, path: Path):
        self.path = path
        self.requests: list[BatchRequest] = []
        self.models: dict[str, int] = {}
        self._file: BinaryIO = path.open("rb")
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        problems: list[str] = []
        lines: dict[str, int] = {}
        for number, start, line in _lines(self._file):
            try:
                found, body = _check(line)
                first = lines.setdefault(found.custom_id, number)
                if first != number:
                    raise invalid(f"custom_id {found.custom_id!r:.100} is that of line {first} too.")
            except ApiError as error:
                problems.append(f"line {number}: {error.message.rstrip('.')}")
                continue
            self.requests.append(BatchRequest(found.custom_id, found.url, number, start, start + len(line)))
            if isinstance(body.model, str):
                self.models.setdefault(body.model, number)
        if problems:
            more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
            raise BatchFileError(f"{self.path}: {'; '.join(problems[:_SHOWN] + more)}")
        if not self.requests:
            raise BatchFileError(f"{self.path} has no requests, expected one in each line")

    def body(self, request: BatchRequest) -> bytes:
        """The JSON of a request's body. Raises BatchFileError if the file is not what it was."""
        self._file.seek(request.start)
        try:
            found = decode(self._file.read(request.stop - request.start), _Line)
        except ApiError:
            found = None
        if found is None or found.custom_id != request.custom_id:
            raise BatchFileError(f"{self.path} was changed: line {request.line} is no longer the same")
        return bytes(found.body)

    def __enter__(self) -> RequestsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Number, place and bytes of each line that is not blank."""
    start = 0
    for number, line in enumerate(file, 1):
        mark = len(codecs.BOM_UTF8) if start == 0 and line.startswith(codecs.BOM_UTF8) else 0
        if line[mark:].strip():
            yield number, start + mark, line[mark:]
        start += len(line)


def _check(line: bytes) -> tuple[_Line, _Body]:
    """Raises ApiError for a line that is no request, or one whose answer would have no place in a result."""
    try:
        found = decode(line, _Line)
    except ApiError as error:
        raise invalid(error.message.replace("The body", "it", 1)) from None
    if found.method != "POST":
        raise invalid(f"method is {found.method!r:.100}, expected 'POST'.")
    if found.url not in URLS:
        raise invalid(f"url is {found.url!r:.100}, expected one of {', '.join(URLS)}.")
    body = decode(bytes(found.body), _Body)
    if body.stream is True:
        raise invalid("body.stream is true, but the answers of a batch are whole.")
    return found, body
