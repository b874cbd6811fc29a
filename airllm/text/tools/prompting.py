"""Messages with tools, in a form that chat templates render.

Templates of models that have learned to call tools get the tools. Other templates ignore them: for those, the
system prompt describes the tools and how to call them, and calls and their results become texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airllm.text.tools.definitions import Tool
from airllm.text.tools.formats import ToolFormat

Message = Mapping[str, Any]


def with_parsed_arguments(messages: Sequence[Message]) -> list[Message]:
    """The messages with the arguments of calls as objects. Clients send them as JSON text, but templates
    write them as JSON themselves.
    """
    return [_with_parsed_arguments(message) for message in messages]


def _with_parsed_arguments(message: Message) -> Message:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_parse_arguments(call) for call in calls]}


def _parse_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments := function.get("arguments"), str):
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        return call  # a call that was cut off
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call


def with_written_calls(messages: Sequence[Message], format: ToolFormat) -> list[Message]:
    """The messages with calls as the end of a text, for a template that drops them. Their numbers go on
    through the conversation, as Kimi's do.
    """
    found, number = [], 0
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        found.append(_with_written_calls(message, calls, format, number) if calls else message)
        number += len(calls or ())
    return found


def _with_written_calls(message: Message, calls: Sequence[Any], format: ToolFormat, number: int) -> Message:
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    written = format.write([_name_and_arguments(call) for call in calls], number)
    return {**rest, "content": _content(message) + written}


def with_written_results(messages: Sequence[Message]) -> list[Message]:
    """The messages with results of calls as texts of the user, for a template that drops them."""
    return [_with_written_result(message) for message in messages]


def _with_written_result(message: Message) -> Message:
    if not isinstance(message, Mapping) or message.get("role") != "tool":
        return message
    return {"role": "user", "content": f"<tool_response>\n{_content(message)}\n</tool_response>"}


def described_in_messages(
    messages: Sequence[Message], tools: Sequence[Tool], format: ToolFormat, as_texts: bool
) -> list[Message]:
    """The messages for a template that does not tell a model of its tools. `as_texts`: it does not write
    calls and their results either.
    """
    told = (
        [_as_text(message, format) for message in messages] if as_texts else with_parsed_arguments(messages)
    )
    if not tools:
        return told
    standing = "\n\n".join(_content(message) for message in told[:1] if message.get("role") == "system")
    rest = told[1:] if standing else told
    system = "\n\n".join(filter(None, (standing, describe_tools(tools, format))))
    return [{"role": "system", "content": system}, *rest]


def describe_tools(tools: Sequence[Tool], format: ToolFormat) -> str:
    """What a model is told about its tools."""
    definitions = "\n".join(json.dumps(tool.definition(), ensure_ascii=False) for tool in tools)
    example = format.write([("NAME", "{ARGUMENTS}")])
    return (
        f"You can call these functions:\n<tools>\n{definitions}\n</tools>\n"
        f"To call one, answer with its name and its arguments as JSON, in this form:\n{example}"
    )


def _as_text(message: Message, format: ToolFormat) -> Message:
    """A message whose calls, or whose result of a call, are text."""
    calls = message.get("tool_calls")
    if not calls:
        return _with_written_result(message)
    written = format.write([_name_and_arguments(call) for call in calls])
    content = "\n".join(filter(None, (_content(message), written)))
    return {"role": message.get("role"), "content": content}


def _name_and_arguments(call: Any) -> tuple[str, str]:
    function = call.get("function") or {} if isinstance(call, Mapping) else {}
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return str(function.get("name", "")), text


def _content(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
