"""The tools of a request, in OpenAI's shape, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airllm.text.grammar.errors import GrammarError

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. `parameters` is the schema of its arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    enforced: Mapping[str, Any]  # what a grammar enforces of `parameters`
    parameter: str = "tools"  # where the request has the schema, for messages

    @property
    def is_strict(self) -> bool:
        """Whether the schema is enforced, not only that the arguments are an object."""
        return self.enforced is not _ANY_OBJECT

    def definition(self, described: bool = False) -> dict[str, Any]:
        """The tool as chat templates expect it. `described`: each parameter has a description, if only ""."""
        parameters = dict(self.parameters)
        properties = parameters.get("properties")
        if described and isinstance(properties, Mapping):
            parameters["properties"] = {name: _described(each) for name, each in properties.items()}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def _described(schema: Any) -> Any:
    return {"description": "", **schema} if isinstance(schema, Mapping) else schema


@dataclass(frozen=True)
class ToolChoice:
    """`tools` are those that may be called, at least one of them if `required`."""

    tools: tuple[Tool, ...] = ()
    required: bool = False


def read_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """The tools of a request. Raises GrammarError with the place that is wrong.

    A tool with `"strict": false` gets any object as arguments. The schemas of all others are enforced.
    """
    if tools is None:
        return ()
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence):
        raise _error("tools", f"found {tools!r}, expected a list of tools")
    found = tuple(_read_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools))
    names = [tool.name for tool in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise _error(f"tools[{i}].function.name", f"found {name!r} twice, expected different names")
    return found


def choose_tools(tools: tuple[Tool, ...], choice: Any) -> ToolChoice:
    """The tools that `tool_choice` allows: "none", "auto", "required", or the name of one."""
    if choice == "none":
        return ToolChoice()
    if choice in ("auto", None):
        return ToolChoice(tools)
    if choice == "required":
        if not tools:
            raise _error("tool_choice", "found 'required' without tools, expected one or more tools")
        return ToolChoice(tools, required=True)
    name = _chosen_name(choice)
    chosen = tuple(tool for tool in tools if tool.name == name)
    if not chosen:
        known = ", ".join(tool.name for tool in tools) or "no tool"
        raise _error("tool_choice", f"found the function {name!r}, expected one of {known}")
    return ToolChoice(chosen, required=True)


def _chosen_name(choice: Any) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        expected = 'expected "none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
        raise _error("tool_choice", f"found {choice!r}, {expected}")
    return name


def _read_tool(tool: Any, place: str) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        raise _error(place, f'found {tool!r}, expected {{"type": "function", "function": {{...}}}}')
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise _error(f"{place}.function", f"found {function!r}, expected an object with a name")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        expected = "expected 1 to 64 letters, digits, underscores and dashes"
        raise _error(f"{place}.function.name", f"found {name!r}, {expected}")
    if description is not None and not isinstance(description, str):
        raise _error(f"{place}.function.description", f"found {description!r}, expected a text")
    parameters = function.get("parameters")
    where = f"{place}.function.parameters"
    if parameters is None:
        parameters = _NO_PARAMETERS
    elif not isinstance(parameters, Mapping):
        raise _error(where, f"found {parameters!r}, expected a JSON schema of an object")
    enforced = _ANY_OBJECT if function.get("strict") is False else _of_object(parameters, where)
    return Tool(name, description or "", parameters, enforced, where)


def _of_object(schema: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The schema, restricted to objects: arguments are always one."""
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise _error(where, f'found the type {kind!r}, expected "object"')
    return {**schema, "type": "object"}


def _error(parameter: str, detail: str) -> GrammarError:
    return GrammarError(parameter, "invalid value", detail=detail)
