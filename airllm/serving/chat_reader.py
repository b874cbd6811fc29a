"""Reads the text of a choice as the parts of a message, for streamed and for whole answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from msgspec import UNSET

from airllm.serving.protocol.answers import Delta, Function, Message, ToolCall, ToolCallDelta


@dataclass(frozen=True)
class Read:
    """What a text added to a message: nothing, if `delta` is None. `finish_reason` replaces the usual one."""

    delta: Delta | None = None
    finish_reason: str | None = None


class ChatReader(Protocol):
    """The state of one choice."""

    def read(self, text: str, is_last: bool) -> Read:
        """The parts of the message that are final after this text."""


class PlainReader:
    """A message that is text."""

    def read(self, text: str, is_last: bool) -> Read:
        return Read(Delta(content=text)) if text else Read()


@dataclass
class MessageDraft:
    """A message of deltas that are joined."""

    content: str = ""
    calls: dict[int, ToolCall] = field(default_factory=dict)

    def add(self, delta: Delta | None) -> None:
        if delta is None:
            return
        self.content += delta.content or ""
        for call in delta.tool_calls or ():
            self._add_call(call)

    def _add_call(self, delta: ToolCallDelta) -> None:
        call = self.calls.setdefault(delta.index, ToolCall(delta.id, delta.type, Function("", "")))
        function = call.function
        if isinstance(function, Function) and isinstance(delta.function, Function):
            function.name += delta.function.name or ""  # type: ignore[operator]  # both are texts
            function.arguments += delta.function.arguments or ""  # type: ignore[operator]

    @property
    def message(self) -> Message:
        """A message with calls and no text has null as content."""
        calls = [self.calls[index] for index in sorted(self.calls)]
        return Message("assistant", self.content or (None if calls else ""), tool_calls=calls or UNSET)
