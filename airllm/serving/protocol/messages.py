"""Checks the messages of a conversation, and brings them into the form that chat templates know."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from airllm.serving.protocol.errors import invalid, unsupported

Shape = TypeVar("Shape")


class _FunctionCall(Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _ToolCall(Struct):
    function: _FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None


class _Part(Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class _Message(Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


def template_messages(messages: Sequence[dict[str, Any]], knows_developer: bool) -> list[dict[str, Any]]:
    """The messages as a template expects them. Raises ApiError that names the message.

    Arguments of tool calls become objects. Without `knows_developer`, the role `developer` becomes `system`.
    Other keys are left to the template.
    """
    return [_template_message(each, f"messages[{i}]", knows_developer) for i, each in enumerate(messages)]


def _template_message(message: dict[str, Any], place: str, knows_developer: bool) -> dict[str, Any]:
    checked = convert(message, _Message, place)
    made = {key: value for key, value in message.items() if value is not None or key == "content"}
    if checked.content is None and not checked.tool_calls and checked.role != "assistant":
        raise invalid(f"Missing required parameter: '{place}.content'.", f"{place}.content")
    if isinstance(checked.content, list):
        made["content"] = [_text_part(p, f"{place}.content[{i}]") for i, p in enumerate(checked.content)]
    if checked.role == "developer" and not knows_developer:
        made["role"] = "system"
    if checked.tool_calls:
        made["tool_calls"] = [
            _template_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(checked.tool_calls)
        ]
    return made


def _text_part(part: _Part, place: str) -> dict[str, str]:
    if part.type not in ("text", "input_text", "output_text", "refusal"):
        raise unsupported(
            f"'{place}' has type {part.type!r}, expected 'text': this model reads only text.", place
        )
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise invalid(f"Missing required parameter: '{place}.text'.", f"{place}.text")
    return {"type": "text", "text": text}


def _template_call(call: _ToolCall, place: str) -> dict[str, Any]:
    arguments = call.function.arguments
    if not isinstance(arguments, dict):
        arguments = _parse_arguments(arguments or "{}", f"{place}.function.arguments")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or "", "type": "function", "function": function}


def _parse_arguments(text: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise invalid(f"'{place}' is no JSON object: {text[:80]!r}.", place)
    return found


def convert(value: Any, shape: type[Shape], place: str) -> Shape:
    """The value as a Struct. Raises ApiError with the place in the request."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        what, _, inner = str(error).partition(" - at `$")
        param = place + inner.rstrip("`")
        raise invalid(f"Invalid value for '{param}': {what}.", param, "invalid_value") from None
