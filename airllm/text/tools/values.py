"""What a JSON schema describes, for grammars of forms that are not JSON; and a writer of such grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from airllm.text.grammar.schema import check_schema

_NOTES = {"description", "title", "default", "examples", "type"}  # what restricts nothing beside the type
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum"}
_SCALARS = ("integer", "number", "boolean", "null")


@dataclass(frozen=True)
class Text:
    """A text: one of `values`, or any."""

    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scalar:
    """A number, a boolean or null. `values`: those of an enum; `document`: the engine's of its schema."""

    kind: str
    document: Mapping[str, Any]
    values: tuple[Any, ...] = ()


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


@dataclass(frozen=True)
class OneOf:
    """A value of one of these kinds."""

    options: tuple[Value, ...]


Value: TypeAlias = Text | Scalar | Array | Object | AnyValue | OneOf


def value_of(schema: Mapping[str, Any], where: str) -> Value | None:
    """What a schema describes. None if a grammar cannot enforce it in a form that is not JSON. Raises
    GrammarError for a schema that is invalid.
    """
    check_schema(schema, where)
    try:
        return _value_of(schema, where)
    except _NotEnforced:
        return None


class _NotEnforced(Exception):
    """A schema has what a grammar of such a form does not express."""


def _value_of(schema: Any, where: str) -> Value:
    if schema is True:
        return AnyValue()
    if not isinstance(schema, Mapping):
        raise _NotEnforced
    if not set(schema) - (_NOTES - {"type"}):
        return AnyValue()
    kind = schema.get("type")
    if isinstance(kind, list):
        return OneOf(tuple(_value_of({**_only(schema, each), "type": each}, where) for each in kind))
    if "anyOf" in schema:
        _allow(schema, (_NOTES - {"type"}) | {"anyOf"})
        return OneOf(tuple(_value_of(each, where) for each in schema["anyOf"]))
    if kind == "string":
        _allow(schema, _NOTES | {"enum"})
        return Text(tuple(schema.get("enum", ())))
    if kind in _SCALARS:
        _allow(schema, _NOTES | _NUMBERS)
        return Scalar(kind, check_schema(schema, where).document(), tuple(schema.get("enum", ())))
    if kind == "array":
        _allow(schema, _NOTES | {"items"})
        return Array(_value_of(schema.get("items", {}), where))
    if kind == "object":
        return _object_of(schema, where)
    raise _NotEnforced


def _only(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The keywords of a schema of several kinds that apply to one of them."""
    if "enum" in schema:
        raise _NotEnforced
    own = {"array": {"items"}, "object": {"properties", "required", "additionalProperties"}}
    of_others = {"array", "object"} - {kind}
    return {key: value for key, value in schema.items() if not any(key in own[other] for other in of_others)}


def _object_of(schema: Mapping[str, Any], where: str) -> Value:
    _allow(schema, _NOTES | {"properties", "required", "additionalProperties"})
    if "properties" not in schema and not schema.get("required") and schema.get("additionalProperties", True):
        return AnyValue(is_object=True)
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if set(required) - set(properties) or not all(re.fullmatch(r"[\w.-]+", key) for key in properties):
        raise _NotEnforced
    return Object(tuple((key, key in required, _value_of(each, where)) for key, each in properties.items()))


def _allow(schema: Mapping[str, Any], keywords: set[str]) -> None:
    if set(schema) - keywords:
        raise _NotEnforced


class ValueGrammar:
    """Writes the rules of values, in the engine's variant of Lark. `prefix` begins the names of rules. A
    subclass has the signs of a form, and how it writes texts and scalars.
    """

    comma, colon = ",", ":"
    any_name = r"/[A-Za-z_][A-Za-z0-9_.\-]*/"

    def __init__(self, prefix: str):
        self._prefix = prefix
        self.rules: list[str] = []
        self._has_any = False

    def write(self, value: Value) -> str:
        """The expression of a value. The rules that it uses are added to `rules`."""
        if isinstance(value, Scalar):
            return self._scalar(value)
        return self._rule(self._expression(value))

    def _text(self, values: tuple[str, ...]) -> str:
        """The expression of a text: one of `values`, or any."""
        raise NotImplementedError

    def _scalar(self, value: Scalar) -> str:
        return _json(value.document)

    def _any_scalar(self) -> str:
        return _json({"type": ["number", "boolean", "null"]})

    def _key(self, name: str) -> str:
        """The name of an object's member, with the sign after it."""
        return f"{name}{self.colon}"

    def _expression(self, value: Value) -> str:
        if isinstance(value, Text):
            return self._text(value.values)
        if isinstance(value, Array):
            item = self._rule(self.write(value.item))
            return f'"[" ({item} ({literal(self.comma)} {item})*)? "]"'
        if isinstance(value, Object):
            return f'"{{" {self.members(value, self._key)} "}}"'
        if isinstance(value, OneOf):
            return " | ".join(self._rule(self.write(each)) for each in value.options)
        assert isinstance(value, AnyValue)
        return self._any(value.is_object)

    def members(self, of: Object, key: Any) -> str:
        """Members in order, with commas between those that are there. `key` writes a name."""
        each = [self._rule(f"{literal(key(name))} {self.write(value)}") for name, _, value in of.members]
        more = [
            f"({literal(self.comma)} {rule}){'' if needed else '?'}"
            for rule, (_, needed, _) in zip(each, of.members, strict=True)
        ]
        options = []
        for at, (_, needed, _) in enumerate(of.members):
            options.append(" ".join([each[at], *more[at + 1 :]]))
            if needed:
                return f"({' | '.join(options)})"
        return f"({' | '.join(options)})?" if options else ""

    def _any(self, is_object: bool) -> str:
        of, comma = f"{self._prefix}any", literal(self.comma)
        if not self._has_any:
            self._has_any = True
            text = self._rule(self._text(()))
            self.rules += [
                f"{of}: {text} | {of}_scalar | {of}_object | {of}_array",
                f"{of}_scalar: {self._any_scalar()}",
                f'{of}_object: "{{" ({of}_member ({comma} {of}_member)*)? "}}"',
                f"{of}_member: {self._any_key(text)} {of}",
                f'{of}_array: "[" ({of} ({comma} {of})*)? "]"',
            ]
        return f"{of}_object" if is_object else of

    def _any_key(self, text: str) -> str:
        """The expression of any name with the sign after it; `text` is the rule of any text."""
        return f"{self.any_name} {literal(self.colon)}"

    def _rule(self, expression: str) -> str:
        name = f"{self._prefix}{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name


def literal(text: str) -> str:
    """The expression of exactly this text."""
    return json.dumps(text, ensure_ascii=False)


def one_of(texts: Sequence[str]) -> str:
    """The expression of one of these texts."""
    return f"({' | '.join(map(literal, texts))})"


def _json(document: Mapping[str, Any]) -> str:
    return f"%json {json.dumps(document)}"
