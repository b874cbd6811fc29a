"""What a chat template supports, and messages in the form that it supports.

Templates differ in the names of what they read. What one supports is found by rendering short conversations
with a mark, and looking for the mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

Message = dict[str, Any]

_MARK = "\u2063mark\u2063"  # a text that no template contains
_ARGUMENTS = {"x": _MARK}
_ID = "123456789"  # Mistral's templates accept no others
_USER: Message = {"role": "user", "content": "x"}
_THOUGHTS = "reasoning_content"
_OTHER_THOUGHTS = ("reasoning", "thinking", "thought")
PARTS = "parts"  # where thoughts are: a part of the content, as Mistral's are


class TemplateTraits:
    """What a template supports. `render` returns the text of messages and tools, "" if the template fails."""

    def __init__(self, source: str, render: Callable[..., str]):
        self._source, self._render = source, render

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the template itself joins the texts of OpenAI's content parts."""
        text = self._render({"role": "user", "content": [_text_part(_MARK)]})
        return _MARK in text and "{'" not in text  # else it printed the list

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template describes tools to the model."""
        return _MARK in self._render(_USER, tools=[_tool(_MARK)])

    @cached_property
    def needs_descriptions(self) -> bool:
        """Whether the template fails on tools whose parameters have no description (Command R+)."""

        def renders(**more: str) -> bool:
            tool = _tool("f")
            tool["function"]["parameters"]["properties"] = {"x": {"type": "string", **more}}
            return bool(self._render(_USER, tools=[tool]))

        return not renders() and renders(description="")

    @cached_property
    def drops_calls(self) -> bool:
        """Whether the template writes no tool calls, but does not fail on them."""
        if self.takes_none or self.takes_calls_of_no_text:
            return False
        return bool(self._render_call("", self.arguments(_ARGUMENTS)))

    @cached_property
    def takes_calls_and_results(self) -> bool:
        """Whether the template writes calls after a text, and results of calls."""
        return self._shows_call("x", self.arguments(_ARGUMENTS)) and _MARK in self._render_result("x")

    @cached_property
    def drops_results(self) -> bool:
        """Whether the template writes no results of calls, but does not fail on them."""
        text = self._render_result("x") or self._render_result(None if self.takes_none else "")
        return bool(text) and _MARK not in text

    def _render_result(self, content: str | None) -> str:
        answer = {"role": "assistant", "content": content, "tool_calls": [_call(self.arguments({}), "f")]}
        result = {"role": "tool", "content": _MARK, "name": "f", "tool_call_id": _ID}
        told = (_USER, answer, result)
        return self._render(*told) or self._render(*told, tools=[_tool("f")])

    @cached_property
    def takes_none(self) -> bool:
        """Whether the template supports tool calls whose content is null."""
        return self._shows_call(None, self.arguments(_ARGUMENTS))

    @cached_property
    def takes_calls_of_no_text(self) -> bool:
        """Whether the template supports tool calls whose content is ""."""
        return self._shows_call("", self.arguments(_ARGUMENTS))

    @cached_property
    def _takes_objects(self) -> bool:
        """Whether the arguments of a call may be an object: some templates support only JSON text."""

        def shows(arguments: Any) -> bool:
            return self._shows_call("", arguments) or self._shows_call(None, arguments)

        return shows(_ARGUMENTS) or not shows(json.dumps(_ARGUMENTS, ensure_ascii=False))

    def arguments(self, found: Any) -> Any:
        """The arguments of a call as the template expects them."""
        if isinstance(found, Mapping) and not self._takes_objects:
            return json.dumps(found, ensure_ascii=False)
        return found

    def _shows_call(self, content: str | None, arguments: Any) -> bool:
        text = self._render_call(content, arguments)
        return _MARK in text and (content is not None or "None" not in text)

    def _render_call(self, content: str | None, arguments: Any) -> str:
        answer = {"role": "assistant", "content": content, "tool_calls": [_call(arguments)]}
        return self._render(_USER, answer) or self._render(_USER, answer, tools=[_tool("f")])

    @cached_property
    def thoughts_in(self) -> str:
        """Where a message has its thoughts: the key, or PARTS."""
        if re.search(rf"\b{_THOUGHTS}\b", self._source):
            return _THOUGHTS
        for key in _OTHER_THOUGHTS:
            if key in self._source and self._shows_thoughts({key: _MARK, "content": ""}):
                return key
        text = self._render_answer({"content": [_thoughts_part(_MARK), _text_part("x")]})
        printed = '"type"' in text or "'type'" in text  # the list itself
        return PARTS if _MARK in text and not printed else _THOUGHTS

    @cached_property
    def takes_thoughts_beside_text(self) -> bool:
        """Whether a message with calls may have both: gpt-oss' may not."""
        return self._shows_thoughts({self.thoughts_in: _MARK, "content": "x"})

    def _shows_thoughts(self, answer: Message) -> bool:
        return _MARK in self._render_answer(answer)

    def _render_answer(self, answer: Message) -> str:
        call = _call(self.arguments({}), "f")
        return self._render(_USER, {"role": "assistant", "tool_calls": [call], **answer})


def fit_message(message: Message, traits: TemplateTraits) -> Message:
    """The message in a form that the template supports: most support only texts as content."""
    content = message.get("content")
    if isinstance(content, list) and is_parts(content) and not traits.takes_parts:
        message = {**message, "content": "\n".join(part["text"] for part in content)}
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        message = {**message, "tool_calls": [_fit_call(call, traits) for call in calls]}
    if not content:  # null beside calls, as OpenAI has it
        message = {**message, "content": None if calls and traits.takes_none else ""}
    thoughts = message.get(_THOUGHTS) or message.get("reasoning")
    if message.get("role") != "assistant" or not isinstance(thoughts, str):
        return message
    return _with_thoughts(message, thoughts, traits)


def is_parts(content: list[Any]) -> bool:
    """Whether these are OpenAI's content parts. Other lists are left to the template."""
    return all(isinstance(part, Mapping) and "type" in part for part in content)


def _fit_call(call: Any, traits: TemplateTraits) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    arguments = traits.arguments(function["arguments"])
    return {**call, "function": {**function, "arguments": arguments}}


def _with_thoughts(message: Message, thoughts: str, traits: TemplateTraits) -> Message:
    where, content = traits.thoughts_in, message.get("content")
    if where == _THOUGHTS:
        return {**message, _THOUGHTS: thoughts}
    if where == PARTS:
        texts = content if isinstance(content, list) else [_text_part(content)] if content else []
        return {**message, "content": [_thoughts_part(thoughts), *texts]}
    if message.get("tool_calls") and content and not traits.takes_thoughts_beside_text:
        return {**message, "content": f"{thoughts}\n\n{content}"}
    return {**message, where: thoughts}


def _call(arguments: Any, name: str = _MARK) -> Message:
    return {"type": "function", "id": _ID, "function": {"name": name, "arguments": arguments}}


def _tool(name: str) -> Message:
    function = {"name": name, "description": "x", "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


def _text_part(text: str) -> Message:
    return {"type": "text", "text": text}


def _thoughts_part(text: str) -> Message:
    return {"type": "thinking", "thinking": text}
