"""The input of /v1/responses as the messages of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airllm.serving.protocol.errors import invalid, unsupported


def messages_of(given: str | Sequence[dict[str, Any]], instructions: str | None) -> list[dict[str, Any]]:
    """The messages of a response's input. Raises ApiError that names the item."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = [{"role": "system", "content": instructions}] if instructions else []
    for i, item in enumerate(items):
        _add(messages, item, f"input[{i}]")
    return messages


def _add(messages: list[dict[str, Any]], item: dict[str, Any], place: str) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        _add_call(messages, item, place)
    elif kind == "function_call_output":
        output = _field(item, "output", place)
        messages.append({"role": "tool", "content": output, "tool_call_id": _field(item, "call_id", place)})
    elif kind != "reasoning":  # models here do not read their earlier reasoning
        raise unsupported(f"'{place}' has type {kind!r}, which is not supported by this server.", place)


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], place: str) -> None:
    """Calls that follow each other, or a text of the assistant, are one message."""
    function = {"name": _field(item, "name", place), "arguments": _field(item, "arguments", place)}
    call = {"id": _field(item, "call_id", place), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _field(item: dict[str, Any], name: str, place: str) -> Any:
    if item.get(name) is None:
        param = f"{place}.{name}"
        raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    return item[name]


def chat_tools(tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Functions as chat/completions has them: one level deeper."""
    for i, tool in enumerate(tools or ()):
        if tool.get("type") != "function":
            place = f"tools[{i}]"
            raise unsupported(
                f"'{place}' has type {tool.get('type')!r}, expected 'function'.", f"{place}.type"
            )
    return [_chat_tool(tool) for tool in tools] if tools else None


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {key: value for key, value in tool.items() if key != "type"}
    return {"type": "function", "function": function}


def chat_tool_choice(choice: Any) -> Any:
    """The choice of a tool as chat/completions has it."""
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def chat_response_format(format: dict[str, Any] | None) -> dict[str, Any] | None:
    """The format of a text as chat/completions has it: a schema is one level deeper."""
    if format is None or format.get("type") != "json_schema":
        return format
    return {"type": "json_schema", "json_schema": {k: v for k, v in format.items() if k != "type"}}
