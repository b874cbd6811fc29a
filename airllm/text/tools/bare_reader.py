"""Reads calls in the form of Gemma 4 from a text while it is generated, and gives their arguments as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from airllm.text.stop_strings import overlap_length
from airllm.text.tools.bare_formats import BareFormat
from airllm.text.tools.reader import CallDelta, ToolCallReader

_SIGN = re.compile(r"[{}\[\],:]")
_NULL = "None"  # what templates write for null


class BareCallReader(ToolCallReader):
    """A `ToolCallReader` that passes on texts as they come, and other values when they are whole."""

    def __init__(self, format: BareFormat, new_id: Callable[[], str] | None = None):
        super().__init__(format, new_id)
        self._quote = format.quote

    def _read_arguments(self, is_last: bool) -> bool:
        found: list[str] = []
        while (piece := self._next()) is not None:
            found.append(piece)
            if not self._depth and not self._in_string:
                break
        if found:
            self._deltas.append(CallDelta(self.calls - 1, "".join(found)))
        if self._depth or self._in_string or not found:
            return False
        self._step = self._read_tail
        return True

    def _next(self) -> str | None:
        """The JSON of what comes next in the buffer; None if that needs more text."""
        if self._in_string:
            return self._next_of_text()
        begun = self._buffer.lstrip()
        if begun.startswith(self._quote):
            self._in_string, self._buffer = True, begun[len(self._quote) :]
            return '"'
        if not (found := _SIGN.search(begun)):
            return None
        word, sign = begun[: found.start()].strip(), found.group()
        self._buffer = begun[found.end() :]
        self._depth += (sign in "{[") - (sign in "}]")
        return _word(word, sign == ":") + (f"{sign} " if sign in ",:" else sign)

    def _next_of_text(self) -> str | None:
        at = self._buffer.find(self._quote)
        end = at if at >= 0 else len(self._buffer) - overlap_length(self._buffer, self._quote)
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        written = json.dumps(text, ensure_ascii=False)[1:-1]
        if at < 0:
            return written or None
        self._in_string, self._buffer = False, self._buffer[len(self._quote) :]
        return written + '"'


def _word(word: str, is_name: bool) -> str:
    """A name, or a value without quotes, as JSON."""
    if not word:
        return ""
    if not is_name:
        try:
            return json.dumps(json.loads("null" if word == _NULL else word))
        except ValueError:
            pass
    return json.dumps(word, ensure_ascii=False)
