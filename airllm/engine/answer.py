"""What comes back from a conversation: the text, the thoughts, and the tool calls, apart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airllm.text.tools.reader import Delta


@dataclass(frozen=True)
class Call:
    """A tool that the model calls. `arguments` are JSON; a text that was cut off may have a part of them."""

    id: str
    name: str
    arguments: str

    def parsed(self) -> Any:
        """The arguments as an object. ValueError if they were cut off."""
        return json.loads(self.arguments)


@dataclass(frozen=True)
class Answer:
    """An answer without the marks that models put around its parts."""

    text: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()

    def message(self) -> dict[str, Any]:
        """The answer as a message of the conversation, in OpenAI's shape."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function",
                 "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]  # fmt: skip
        return message


def join(deltas: Iterable[Delta]) -> Answer:
    """The answer that these deltas add up to."""
    text = reasoning = ""
    calls: list[Call] = []
    for delta in deltas:
        text, reasoning = text + delta.text, reasoning + delta.reasoning
        for each in delta.calls:
            if each.id is not None:
                calls.append(Call(each.id, each.name or "", each.arguments))
            else:
                begun = calls[each.index]
                calls[each.index] = Call(begun.id, begun.name, begun.arguments + each.arguments)
    return Answer(text, reasoning, tuple(calls))
