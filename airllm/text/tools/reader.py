"""Reads tool calls from a text while it is generated.

What it finds depends only on the text, not on the pieces in which it comes: so a streamed answer and a whole
one have the same calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from airllm.text.stop_strings import overlap_length
from airllm.text.tools.formats import PYTHON_TAG, ToolFormat

_LONGEST = 256  # characters between the trigger of a call and its arguments
_STRUCTURE = re.compile(r'["\\{}]')


@dataclass(frozen=True)
class CallDelta:
    """What was added to a call. `id` and `name` come with its first delta; `arguments` are JSON."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Delta:
    """What a piece of text added to an answer."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()


class ToolCallReader:
    """Splits a text into calls and the text around them. White space next to calls is dropped. What begins
    like a call but is none is text.
    """

    def __init__(self, format: ToolFormat, new_id: Callable[[], str] | None = None):
        self.calls = 0
        self._format, self._new_id = format, new_id or format.new_id
        self._buffer = self._spaces = ""
        self._texts: list[str] = []
        self._deltas: list[CallDelta] = []
        self._depth, self._in_string, self._escaped = 0, False, False
        self._step: Callable[[bool], bool] = self._read_text if format.trigger else self._read_beginning

    def read(self, text: str, is_last: bool = False) -> tuple[str, list[CallDelta]]:
        """The text and the parts of calls that are final after this piece."""
        self._buffer += text
        self._texts, self._deltas = [], []
        while self._step(is_last):
            pass
        if is_last and not self.calls:
            self._texts.append(self._spaces)
            self._spaces = ""
        return "".join(self._texts), self._deltas

    # Each step reads from the buffer and returns whether another step can follow at once.

    def _read_beginning(self, is_last: bool) -> bool:
        """The beginning of a text that is either calls or none."""
        self._buffer = self._buffer.removeprefix(PYTHON_TAG)
        begun = self._buffer.lstrip()
        if not is_last and (not begun or PYTHON_TAG.startswith(begun)):
            return False
        self._step = self._read_head if begun.startswith("{") else self._read_rest
        return True

    def _read_rest(self, is_last: bool) -> bool:
        self._pass_on(len(self._buffer))
        return False

    def _read_text(self, is_last: bool) -> bool:
        """Text up to the trigger of a call."""
        trigger = self._format.trigger
        assert trigger
        at = self._buffer.find(trigger)
        if at < 0:
            held = 0 if is_last else overlap_length(self._buffer, trigger)
            self._pass_on(len(self._buffer) - held)
            return False
        self._pass_on(at)
        self._step = self._read_head
        return True

    def _read_head(self, is_last: bool) -> bool:
        """The beginning of a call, up to its arguments."""
        if found := self._format.head.match(self._buffer[:_LONGEST]):
            self._begin_call(found)
            return True
        if not is_last and len(self._buffer) < _LONGEST:
            return False
        self._pass_on(len(self._format.trigger or self._buffer))  # it is no call
        self._step = self._read_text if self._format.trigger else self._read_rest
        return True

    def _begin_call(self, found: re.Match[str]) -> None:
        own = found.groupdict().get("id")
        self._deltas.append(CallDelta(self.calls, "", own or self._new_id(), found["name"]))
        self.calls += 1
        self._spaces = ""
        self._buffer = self._buffer[found.end() :]
        self._step = self._read_arguments

    def _read_arguments(self, is_last: bool) -> bool:
        """A JSON object."""
        end = self._end_of_object()
        if piece := self._buffer[:end]:
            self._deltas.append(CallDelta(self.calls - 1, piece))
        self._buffer = self._buffer[len(piece) :]
        if end is None:
            return False
        self._step = self._read_tail
        return True

    def _end_of_object(self) -> int | None:
        """Where in the buffer the object ends; None if it goes on. Remembers the state for the next piece."""
        if self._escaped and self._buffer:
            at, self._escaped = 1, False
        else:
            at = 0
        while found := _STRUCTURE.search(self._buffer, at):
            at = found.end()
            if found.group() == "\\":
                at += 1
            elif found.group() == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if found.group() == "{" else -1
                if self._depth == 0:
                    return at
        self._escaped = at > len(self._buffer) or (self._escaped and not self._buffer)
        return None

    def _read_tail(self, is_last: bool) -> bool:
        """What follows the arguments: the next call, or the end of the calls."""
        near = self._buffer[:_LONGEST]
        if self._format.next and (found := self._format.next.match(near)):
            self._begin_call(found)
            return True
        if found := self._format.tail.match(near):
            self._buffer = self._buffer[found.end() :]
        elif not is_last and len(near) < _LONGEST:
            return False
        elif self._format.end.startswith("".join(near.split())):  # the text was cut off
            self._buffer = ""
        self._step = self._read_text if self._format.trigger else self._read_rest
        return True

    def _pass_on(self, count: int) -> None:
        """Text outside of calls. White space waits for what follows."""
        text, self._buffer = self._spaces + self._buffer[:count], self._buffer[count:]
        kept = text.rstrip()
        self._texts.append(kept)
        self._spaces = text[len(kept) :]
