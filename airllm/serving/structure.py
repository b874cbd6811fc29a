"""The form that a request asks of its answer, by OpenAI's field or by those of other servers."""

from __future__ import annotations

from typing import Any

from airllm.engine.constraint import NewConstraint
from airllm.serving.prompts import Prompts, refused_as_invalid
from airllm.serving.protocol.errors import invalid, unsupported
from airllm.serving.protocol.requests import GenerationFields

_FIELDS = ("response_format", "structured_outputs", "json_schema")
_GRAMMAR = "'grammar' is not supported: use 'response_format' with a schema, or 'structured_outputs'."


def response_format_of(asked: GenerationFields) -> dict[str, Any] | None:
    """The schema or kind of JSON, in the shape of `response_format`; None for any other form.
    Raises ApiError for two fields, or what is not supported.
    """
    if asked.grammar is not None:
        raise unsupported(_GRAMMAR, "grammar")
    given = [name for name in _FIELDS if getattr(asked, name) is not None]
    if len(given) > 1:
        raise invalid(f"'{given[0]}' and '{given[1]}' exclude each other.", given[1])
    if asked.json_schema is not None:
        return _schema_format(asked.json_schema)
    if asked.structured_outputs is not None and "json" in asked.structured_outputs:
        return _schema_format(asked.structured_outputs["json"])
    return asked.response_format


def _schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def other_constraint(prompts: Prompts, asked: GenerationFields) -> NewConstraint | None:
    """The constraint of an expression or of choices, with vLLM's names."""
    wanted = dict(asked.structured_outputs or {})
    wanted.pop("json", None)
    if not wanted:
        return None
    if len(asked.structured_outputs or {}) > 1:
        raise invalid("'structured_outputs' has several keys, expected one.", "structured_outputs")
    ((name, value),) = wanted.items()
    place = f"structured_outputs.{name}"
    with refused_as_invalid():
        if name == "regex" and isinstance(value, str):
            return prompts.grammars.regex(value, place)
        if name == "choice" and isinstance(value, list):
            return prompts.grammars.choices(value, place)
    raise invalid(f"'{place}' is not supported: expected 'json', 'regex' or 'choice'.", place)


def constraint_of(prompts: Prompts, asked: GenerationFields) -> NewConstraint | None:
    """The constraint of a text without a conversation."""
    format = response_format_of(asked)
    if format is None or format.get("type") == "text":
        return other_constraint(prompts, asked)
    schema: Any = {"type": "object"}
    if format.get("type") == "json_schema":
        described = format.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
    elif format.get("type") != "json_object":
        raise invalid("'response_format.type' is unknown.", "response_format.type")
    with refused_as_invalid():
        return prompts.grammars.json_schema(schema, "response_format.json_schema.schema")
