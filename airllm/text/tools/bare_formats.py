"""Calls with arguments as Gemma 4 writes them: names without quotes, and texts between quote tokens.

    <|tool_call>call:weather{city:<|"|>New York<|"|>,days:3}<tool_call|>

Nothing in a text is escaped, so it cannot contain the quote. Members are in the order of their names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from airllm.text.grammar.schema import check_schema
from airllm.text.tools.formats import ToolFormat

_NOTES = {"description", "title", "default", "examples", "type"}  # what restricts nothing beside the type
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum"}


@dataclass(frozen=True)
class BareFormat(ToolFormat):
    """`quote` stands before and after a text."""

    quote: str = ""


GEMMA = BareFormat(
    "gemma", "<|tool_call>",
    first="<|tool_call>", call="call:", middle="", after="", between="<tool_call|><|tool_call>",
    last="<tool_call|>",
    head=re.compile(r"<\|tool_call>\s*call:\s*(?P<name>[\w-]+)\s*(?=\{)"), next=None,
    tail=re.compile(r"\s*<tool_call\|>"), end="<tool_call|>", control=('<|"|>',), spaced=False,
    quote='<|"|>',
)  # fmt: skip


def bare_format_of(template: str) -> BareFormat | None:
    """The form that a chat template's source shows; None if it shows no such form."""
    return GEMMA if "<|tool_call>call:" in template else None


@dataclass(frozen=True)
class Text:
    """A text: one of `values`, or any."""

    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scalar:
    """A number, a boolean or null, with the engine's document of its schema."""

    document: Mapping[str, Any]


@dataclass(frozen=True)
class Array:
    """Any number of items."""

    item: Value


@dataclass(frozen=True)
class Object:
    """Members in order: name, whether it is required, value."""

    members: tuple[tuple[str, bool, Value], ...]


@dataclass(frozen=True)
class AnyValue:
    """What JSON has, or only an object."""

    is_object: bool = False


Value: TypeAlias = Text | Scalar | Array | Object | AnyValue


def bare_value_of(schema: Mapping[str, Any], where: str) -> Value | None:
    """What a schema describes. None if a grammar of this form cannot enforce it. Raises GrammarError for a
    schema that is invalid.
    """
    check_schema(schema, where)
    try:
        return _value_of(schema, where)
    except _NotEnforced:
        return None


class _NotEnforced(Exception):
    """A schema has what a grammar of this form does not express."""


def _value_of(schema: Any, where: str) -> Value:
    if schema is True or schema == {}:
        return AnyValue()
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "string":
        _allow(schema, _NOTES | {"enum"})
        return Text(tuple(schema.get("enum", ())))
    if kind in ("integer", "number", "boolean", "null"):
        _allow(schema, _NOTES | _NUMBERS)
        return Scalar(check_schema(schema, where).document())
    if kind == "array":
        _allow(schema, _NOTES | {"items"})
        return Array(_value_of(schema.get("items", {}), where))
    if kind == "object":
        return _object_of(schema, where)
    raise _NotEnforced


def _object_of(schema: Mapping[str, Any], where: str) -> Value:
    _allow(schema, _NOTES | {"properties", "required", "additionalProperties"})
    if "properties" not in schema and not schema.get("required") and schema.get("additionalProperties", True):
        return AnyValue(is_object=True)
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if set(required) - set(properties) or not all(re.fullmatch(r"[\w.-]+", key) for key in properties):
        raise _NotEnforced
    ordered = sorted(properties, key=str.lower)
    return Object(tuple((key, key in required, _value_of(properties[key], where)) for key in ordered))


def _allow(schema: Mapping[str, Any], keywords: Sequence[str] | set[str]) -> None:
    if set(schema) - set(keywords):
        raise _NotEnforced


class BareGrammar:
    """Writes the rules of values, in the engine's variant of Lark. `quote`: its expression; `is_control`:
    it is a control token, which no text contains. `prefix` begins the names of rules.
    """

    def __init__(self, quote: str, is_control: bool, prefix: str):
        self._quote, self._is_control, self._prefix = quote, is_control, prefix
        self.rules: list[str] = []
        self._has_any = False

    def write(self, value: Value) -> str:
        """The expression of a value. The rules that it uses are added to `rules`."""
        if isinstance(value, Scalar):
            return f"%json {json.dumps(value.document)}"
        return self._rule(self._expression(value))

    def _expression(self, value: Value) -> str:
        if isinstance(value, Text):
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value.values)
            return f"{self._quote} ({texts}) {self._quote}" if texts else self._text()
        if isinstance(value, Array):
            item = self._rule(self.write(value.item))
            return f'"[" ({item} ("," {item})*)? "]"'
        if isinstance(value, Object):
            return f'"{{" {self._members(value)} "}}"'
        assert isinstance(value, AnyValue)
        return self._any(value.is_object)

    def _text(self) -> str:
        if self._is_control:
            return f"{self._quote} /(?s:.*)/ {self._quote}"
        end = f"{self._prefix}end_{len(self.rules)}"
        self.rules.append(f"{end}[lazy]: /(?s:.*)/ {self._quote}")
        return f"{self._quote} {end}"

    def _members(self, of: Object) -> str:
        """Members in order, with commas between those that are there."""
        each = [self._rule(f'"{key}:" {self.write(value)}') for key, _, value in of.members]
        more = [
            f'("," {rule}){"" if needed else "?"}'
            for rule, (_, needed, _) in zip(each, of.members, strict=True)
        ]
        options = []
        for at, (_, needed, _) in enumerate(of.members):
            options.append(" ".join([each[at], *more[at + 1 :]]))
            if needed:
                return f"({' | '.join(options)})"
        return f"({' | '.join(options)})?" if options else ""

    def _any(self, is_object: bool) -> str:
        of = f"{self._prefix}any"
        if not self._has_any:
            self._has_any = True
            text = self._rule(self._text())
            scalar = '%json {"type": ["number", "boolean", "null"]}'
            self.rules += [
                f"{of}: {text} | {of}_scalar | {of}_object | {of}_array",
                f"{of}_scalar: {scalar}",
                f'{of}_object: "{{" ({of}_member ("," {of}_member)*)? "}}"',
                rf'{of}_member: /[A-Za-z_][A-Za-z0-9_.\-]*/ ":" {of}',
                f'{of}_array: "[" ({of} ("," {of})*)? "]"',
            ]
        return f"{of}_object" if is_object else of

    def _rule(self, expression: str) -> str:
        name = f"{self._prefix}{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name
