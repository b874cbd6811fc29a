"""Checks that a JSON schema can be enforced, and writes it for the grammar engine.

The engine ignores what it does not know, and some of what it knows. So only the keywords of `_RULES` are
passed on, each with checked values. Keywords that only describe are left out. Every other keyword raises
GrammarError: a text that breaks the schema is never generated silently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote

from airllm.text.grammar.errors import GrammarError, Place, json_pointer
from airllm.text.grammar.patterns import translate

MOST_BYTES = 256 * 1024
MOST_DEPTH = 48
MOST_COUNT = 100_000  # of items or characters
MOST_SCHEMAS = 3000
MOST_PROPERTIES = 400  # of one object
MOST_OPTIONS = 200  # of oneOf, whose options are compared in pairs
MOST_MULTIPLE = 10_000
_EXACT = 2**53  # the engine computes in float64
_TINY = 1e-30

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
# Their syntax is enforced. A date may be the 29th of February of any year, a second may be a leap second.
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
_DESCRIPTIONS = frozenset({
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
    "contentMediaType", "contentEncoding", "discriminator",
})  # fmt: skip
_DRAFTS = ("https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema",
           "http://json-schema.org/draft-07/schema", "http://json-schema.org/draft-06/schema")  # fmt: skip
_ROOT = ("$defs", "root")  # where the engine's document has the schema


class EngineSchema:
    """A checked schema in the engine's words."""

    def __init__(self, root: Any, places: Sequence[Place]):
        self._root, self._places = root, places

    def document(self, place: Place = ()) -> dict[str, Any]:
        """The engine's document for the schema at `place`."""
        return {"$defs": {"root": self._root}, "$ref": _engine_reference(place)}

    def places(self) -> Iterator[Place]:
        """The places of all schemas in it but `true` and `false`, the deepest first."""
        return iter(sorted(self._places, key=len, reverse=True))


def check_schema(schema: Any, parameter: str = "json_schema") -> EngineSchema:
    """The schema for the engine. Raises GrammarError if it is invalid or cannot be enforced."""
    schema = _as_plain_json(schema, parameter)
    checker = _Checker(schema, parameter)
    root = checker.schema(schema, ())
    checker.check_references()
    return EngineSchema(root, [place for place, part in checker.places.items() if part not in (True, False)])


def _as_plain_json(schema: Any, parameter: str) -> Any:
    """The schema as lists, dicts and numbers. `schema` may be JSON text, or a Pydantic model."""
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False, ensure_ascii=False)
        if (size := len(text.encode())) > MOST_BYTES:
            raise ValueError(f"{size} bytes, expected at most {MOST_BYTES}")
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, TypeError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise GrammarError(parameter, "invalid schema", detail=f"expected JSON, found {why}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"the number {name}")


def _engine_reference(place: Place) -> str:
    return f"#{quote(json_pointer((*_ROOT, *place)), safe='/~')}"


class _Checker:
    """Checks one document. `places` are those of the schemas in it."""

    def __init__(self, root: Any, parameter: str):
        self._root, self._parameter = root, parameter
        self.places: dict[Place, Any] = {}
        self._references: list[tuple[Place, Place]] = []
        self._multiples = 1

    def error(self, place: Place, detail: str, what: str = "invalid value") -> GrammarError:
        return GrammarError(self._parameter, what, place, detail)

    def schema(self, schema: Any, place: Place) -> Any:
        """A schema and all in it."""
        self.places[place] = schema
        if len(place) > 2 * MOST_DEPTH:
            raise self.error(place, f"expected at most {MOST_DEPTH} levels of schemas", "unsupported depth")
        if len(self.places) > MOST_SCHEMAS:
            raise self.error(place, f"expected at most {MOST_SCHEMAS} schemas in all", "unsupported size")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self.error(place, f"found {_short(schema)}, expected a schema: an object, true or false")
        found = {}
        for keyword, value in schema.items():
            if keyword in _DESCRIPTIONS:
                continue
            if keyword not in _RULES:
                why = "a grammar cannot enforce it, so a text could break it"
                raise self.error((*place, keyword), why, "unsupported keyword")
            checked = _RULES[keyword](self, value, (*place, keyword))
            if checked is not None or keyword == "const":
                found[keyword] = checked
        return found

    def check_references(self) -> None:
        """Raise GrammarError if a $ref leads to no schema, or only to itself."""
        for place, target in self._references:
            if target not in self.places:
                raise self.error(place, f"{json_pointer(target) or '#'} is no schema of this document")
            self._check_circle(place[:-1])

    def _check_circle(self, place: Place) -> None:
        following = {source[:-1]: target for source, target in self._references}
        passed = set()
        while place in following:
            if place in passed:
                raise self.error((*place, "$ref"), "it refers to itself, so it describes nothing")
            passed.add(place)
            place = following[place]

    # ------------------------------------------------------------------------------------------ keywords

    def version(self, value: Any, place: Place) -> None:
        if len(place) > 1 or not isinstance(value, str) or value.rstrip("#") not in _DRAFTS:
            raise self.error(
                place, f"found {_short(value)}, expected draft 6, 7, 2019-09 or 2020-12, at the root"
            )

    def identity(self, value: Any, place: Place) -> None:
        if len(place) > 1:
            raise self.error(
                place, "it changes what $ref means, expected it at the root only", "unsupported keyword"
            )

    def reference(self, value: Any, place: Place) -> str:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise self.error(
                place, f"found {_short(value)}, expected a place in this document, such as #/$defs/x"
            )
        keys = unquote(value[1:]).split("/")[1:]
        target = tuple(key.replace("~1", "/").replace("~0", "~") for key in keys)
        self._references.append((place, target))
        return _engine_reference(target)

    def type(self, value: Any, place: Place) -> Any:
        names = value if isinstance(value, list) else [value]
        if not names or any(name not in _TYPES for name in names) or len(set(names)) < len(names):
            raise self.error(place, f"found {_short(value)}, expected one or more of {', '.join(_TYPES)}")
        return value

    def values(self, value: Any, place: Place) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise self.error(place, f"found {_short(value)}, expected a list of values")
        return [self.constant(each, (*place, str(i))) for i, each in enumerate(value)]

    def constant(self, value: Any, place: Place) -> Any:
        """A JSON value whose numbers float64 has exactly."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self.number(value, place)
        if isinstance(value, list):
            return [self.constant(each, (*place, str(i))) for i, each in enumerate(value)]
        if isinstance(value, dict):
            return {key: self.constant(each, (*place, key)) for key, each in value.items()}
        return value

    def number(self, value: Any, place: Place) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(place, f"found {_short(value)}, expected a number")
        if abs(value) > _EXACT or not math.isfinite(value):  # in this order: a whole number may be no float
            raise self.error(place, f"found {_short(value)}, expected a number from -2^53 to 2^53")
        return int(value) if value == int(value) else value

    def lower_bound(self, value: Any, place: Place) -> float:
        """The exclusive bound, moved up a little if it is whole. The engine allows a whole exclusive bound
        itself if the other bound is less than 1 away (llguidance 1.9).
        """
        return _next_number(self.number(value, place), math.inf)

    def upper_bound(self, value: Any, place: Place) -> float:
        return _next_number(self.number(value, place), -math.inf)

    def multiple(self, value: Any, place: Place) -> Any:
        """A divisor. The engine's states grow with the least common multiple of those that apply together."""
        number = self.number(value, place)
        if number <= 0:
            raise self.error(place, f"found {_short(value)}, expected a number above 0")
        self._multiples = math.lcm(self._multiples, _digits(number))
        if self._multiples > MOST_MULTIPLE:
            found = (
                f"found {_short(value)}, expected digits with a least common multiple up to {MOST_MULTIPLE}"
            )
            raise self.error(place, found, "unsupported value")
        return number

    def count(self, value: Any, place: Place) -> int:
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1
        if not whole or not 0 <= value <= MOST_COUNT:
            raise self.error(place, f"found {_short(value)}, expected a whole number from 0 to {MOST_COUNT}")
        return int(value)

    def few_properties(self, value: Any, place: Place) -> int:
        if (count := self.count(value, place)) > 1:
            why = "a grammar cannot count properties whose names may repeat, expected 0 or 1"
            raise self.error(place, f"found {count}: {why}", "unsupported value")
        return count

    def names(self, value: Any, place: Place) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.error(place, f"found {_short(value)}, expected a list of names")
        self._check_names(value, place)
        return value

    def schemas(self, value: Any, place: Place) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise self.error(place, f"found {_short(value)}, expected a list of schemas")
        return [self.schema(each, (*place, str(i))) for i, each in enumerate(value)]

    def named_schemas(self, value: Any, place: Place) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(place, f"found {_short(value)}, expected an object of schemas")
        return {name: self.schema(each, (*place, name)) for name, each in value.items()}

    def properties(self, value: Any, place: Place) -> dict[str, Any]:
        if isinstance(value, dict):
            self._check_names(value, place)
            if len(value) > MOST_PROPERTIES:
                found = f"found {len(value)} properties, expected at most {MOST_PROPERTIES}"
                raise self.error(place, found, "unsupported size")
        return self.named_schemas(value, place)

    def disjoint_schemas(self, value: Any, place: Place) -> list[Any]:
        if isinstance(value, list) and len(value) > MOST_OPTIONS:
            found = f"found {len(value)} schemas, expected at most {MOST_OPTIONS}"
            raise self.error(place, found, "unsupported size")
        return self.schemas(value, place)

    def _check_names(self, names: Iterable[str], place: Place) -> None:
        """JSON has two forms of control characters, so a grammar cannot tell such a name from others."""
        for name in names:
            if any(ord(character) < 32 or ord(character) == 127 for character in name):
                raise self.error(
                    place, f"found the name {_short(name)}, expected one without control characters"
                )

    def prefix_items(self, value: Any, place: Place) -> list[Any]:
        draft = self._root.get("$schema", _DRAFTS[0])
        if draft.rstrip("#") != _DRAFTS[0]:
            raise self.error(
                place, f"{draft} does not have it, expected draft 2020-12", "unsupported keyword"
            )
        return self.schemas(value, place)

    def pattern(self, value: Any, place: Place) -> str:
        if not isinstance(value, str):
            raise self.error(place, f"found {_short(value)}, expected a regular expression")
        try:
            return translate(value)
        except ValueError as error:
            raise self.error(place, f"found {error}", "unsupported pattern") from None

    def format(self, value: Any, place: Place) -> str:
        if value not in FORMATS:
            expected = f"expected one of {', '.join(FORMATS)}"
            raise self.error(place, f"found {_short(value)}, {expected}", "unsupported format")
        return value

    def uniqueness(self, value: Any, place: Place) -> None:
        if value is not False:
            raise self.error(place, "a grammar cannot compare items, expected false", "unsupported keyword")


_RULES: dict[str, Callable[[_Checker, Any, Place], Any]] = {
    "$schema": _Checker.version,
    "$id": _Checker.identity,
    "$ref": _Checker.reference,
    "$defs": _Checker.named_schemas,
    "definitions": _Checker.named_schemas,
    "type": _Checker.type,
    "enum": _Checker.values,
    "const": _Checker.constant,
    "anyOf": _Checker.schemas,
    "allOf": _Checker.schemas,
    "oneOf": _Checker.disjoint_schemas,
    "properties": _Checker.properties,
    "additionalProperties": _Checker.schema,
    "required": _Checker.names,
    "minProperties": _Checker.few_properties,
    "maxProperties": _Checker.count,
    "items": _Checker.schema,
    "prefixItems": _Checker.prefix_items,
    "minItems": _Checker.count,
    "maxItems": _Checker.count,
    "uniqueItems": _Checker.uniqueness,
    "minLength": _Checker.count,
    "maxLength": _Checker.count,
    "pattern": _Checker.pattern,
    "format": _Checker.format,
    "minimum": _Checker.number,
    "maximum": _Checker.number,
    "exclusiveMinimum": _Checker.lower_bound,
    "exclusiveMaximum": _Checker.upper_bound,
    "multipleOf": _Checker.multiple,
}


def _next_number(bound: float, towards: float) -> float:
    if bound != int(bound):
        return bound
    return math.copysign(_TINY, towards) if bound == 0 else math.nextafter(bound, towards)


def _digits(number: float) -> int:
    """The significant digits of a decimal number, without its point: 25 for 0.25 or 2500."""
    return int("".join(map(str, Decimal(str(number)).normalize().as_tuple().digits)))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
