"""Reads calls in the form of LFM2 from a text while it is generated, and gives their arguments as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from airllm.text.tools.python_formats import text_in_json
from airllm.text.tools.reader import CallDelta, ToolCallReader

_SIGN = re.compile(r"""[{}\[\](),:="']""")
_PAIRS = {"{": "}", "[": "]", "(": ")"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
            "v": "\v", "\n": ""}  # fmt: skip
_DIGITS = {"x": 2, "u": 4, "U": 8}
_OCTAL = re.compile(r"[0-7]{1,3}")


class PythonCallReader(ToolCallReader):
    """A `ToolCallReader` that passes on texts as they come, and other values when they are whole."""

    def _begin_call(self, found: Any) -> None:
        super()._begin_call(found)
        self._deltas.append(CallDelta(self.calls - 1, "{"))
        self._open, self._quote = ["("], ""

    def _read_arguments(self, is_last: bool) -> bool:
        pieces: list[str] = []
        while self._open and (piece := self._next()) is not None:
            pieces.append(piece)
        if written := "".join(pieces):
            self._deltas.append(CallDelta(self.calls - 1, written))
        if self._open:
            return False
        self._step = self._read_tail
        return True

    def _next(self) -> str | None:
        """The JSON of what comes next in the buffer; None if that needs more text."""
        if self._quote:
            return self._next_of_text()
        begun = self._buffer.lstrip()
        if not (found := _SIGN.search(begun)):
            return None
        word, sign = begun[: found.start()].strip(), found.group()
        self._buffer = begun[found.end() :]
        return _word(word, is_name=sign in ":=") + self._sign(sign)

    def _sign(self, sign: str) -> str:
        if sign in "\"'":
            self._quote = sign
            return '"'
        if sign in _PAIRS:
            self._open.append(sign)
            return sign
        if sign in ",:=":
            return ", " if sign == "," else ": "
        opened = self._open.pop()
        return _PAIRS[opened] if self._open else "}"

    def _next_of_text(self) -> str | None:
        end = re.search(rf"[\\{self._quote}]", self._buffer)
        if not end:
            return self._pass_text(len(self._buffer)) or None
        if end.start():
            return self._pass_text(end.start())
        if self._buffer[0] == self._quote:
            self._quote, self._buffer = "", self._buffer[1:]
            return '"'
        return self._next_escape()

    def _pass_text(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        return _json_text(text)

    def _next_escape(self) -> str | None:
        """The character that an escape stands for. Like Python, keeps the backslash of one that is none."""
        kind, digits = self._buffer[1:2], self._buffer[2:]
        if not kind:
            return None
        if kind in "01234567":
            if len(self._buffer) < 4:
                return None
            found = _OCTAL.match(self._buffer, 1)
            assert found
            self._buffer = self._buffer[found.end() :]
            return _json_text(chr(int(found.group(), 8)))
        if count := _DIGITS.get(kind):
            return self._next_code(digits[:count], count)
        self._buffer = digits
        return _json_text(_ESCAPES.get(kind, "\\" + kind))

    def _next_code(self, digits: str, count: int) -> str | None:
        """The character with a hexadecimal number of so many digits."""
        wrong = re.search(r"[^0-9A-Fa-f]", digits)
        if len(digits) < count and not wrong:
            return None
        if wrong or int(digits, 16) > 0x10FFFF:
            return self._pass_text(2)
        self._buffer = self._buffer[2 + count :]
        return _json_text(chr(int(digits, 16)))


def _json_text(text: str) -> str:
    """The inside of a text in JSON."""
    return text_in_json(text)[1:-1]


def _word(word: str, is_name: bool) -> str:
    """A name, or a value without quotes, as JSON."""
    if not word:
        return ""
    if not is_name:
        try:
            return json.dumps(json.loads(_WORDS.get(word, word)))
        except ValueError:
            pass
    return json.dumps(word, ensure_ascii=False)
