"""Reads the text of a choice as the parts of a message, for streamed and for whole answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import UNSET

from airllm.engine.request import END, STOP
from airllm.serving.protocol.answers import Delta, Function, Message, ToolCall, ToolCallDelta
from airllm.text.answers import Reader
from airllm.text.tools import reader
from airllm.text.tools.reader import CallDelta


@dataclass(frozen=True)
class Read:
    """What a text added to a message: nothing, if `delta` is None. `finish_reason` replaces the usual one."""

    delta: Delta | None = None
    finish_reason: str | None = None


class ChatReader:
    """Reads one choice."""

    def __init__(self, answers: Reader):
        self._answers = answers

    def read(self, text: str, reason: str) -> Read:
        """The parts of the message that are final after this text; `reason`: why it is the last, or ""."""
        found = self._answers.read(text, bool(reason))
        called = self._answers.calls and reason in (END, STOP)
        return Read(_delta(found), "tool_calls" if called else None)


def _delta(found: reader.Delta) -> Delta | None:
    if not (found.text or found.reasoning or found.calls):
        return None
    return Delta(
        content=found.text or UNSET,
        reasoning_content=found.reasoning or UNSET,
        tool_calls=[_call(each) for each in found.calls] or UNSET,
    )


def _call(found: CallDelta) -> ToolCallDelta:
    function = Function(found.name or UNSET, found.arguments)
    if not found.id:
        return ToolCallDelta(function=function, index=found.index)
    return ToolCallDelta(found.id, "function", function, index=found.index)


@dataclass
class MessageDraft:
    """A message of deltas that are joined."""

    content: str = ""
    reasoning: str = ""
    calls: dict[int, ToolCall] = field(default_factory=dict)

    def add(self, delta: Delta | None) -> None:
        if delta is None:
            return
        self.content += delta.content or ""
        self.reasoning += delta.reasoning_content or ""
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
        return Message(
            "assistant",
            self.content or (None if calls else ""),
            reasoning_content=self.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
