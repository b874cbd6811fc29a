"""Decodes the JSON of a request into a Struct. Errors name the field as OpenAI does."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from airllm.serving.protocol.errors import ApiError, invalid

Shape = TypeVar("Shape", bound=msgspec.Struct)

_PLACE = re.compile(r"(?P<what>.*) - at `(?P<key>key in )?\$\.?(?P<place>[^`]*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)


def decode(body: bytes, shape: type[Shape]) -> Shape:
    """The request in `body`. Raises ApiError, status 400."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise invalid("The body has too many levels of objects and lists.", code="invalid_json") from None


def _refusal(message: str) -> ApiError:
    """The error for a value that does not have the expected shape. msgspec's message says what and where."""
    found = _PLACE.fullmatch(message)
    what, place = (found["what"], found["place"]) if found else (message, "")
    if unknown := _UNKNOWN.fullmatch(what):
        param = _join(place, unknown["name"])
        return invalid(f"Unrecognized request argument supplied: {param}", param, "unknown_parameter")
    if missing := _MISSING.fullmatch(what):
        param = _join(place, missing["name"])
        return invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    if not place:
        return invalid(f"The body is not as expected: {what}.", code="invalid_type")
    return invalid(f"Invalid value for '{place}': {what}.", place, "invalid_value")


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
