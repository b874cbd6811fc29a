"""Calls as LFM2 writes them: a list of calls in Python.

<|tool_call_start|>[weather(city="New York", days=3, now=True), now()]<|tool_call_end|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from airllm.text.tools.formats import ToolFormat, shows_lfm2
from airllm.text.tools.values import AnyValue, Object, Scalar, Value, ValueGrammar, one_of

_BEGIN, _END = "<|tool_call_start|>", "<|tool_call_end|>"
_NAME = r"(?P<name>[\w-]+)"
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_WORDS = {True: "True", False: "False", None: "None"}
_TEXT = r"""/"([^"\\]|\\(?s:.))*"|'([^'\\]|\\(?s:.))*'/"""


@dataclass(frozen=True)
class PythonFormat(ToolFormat):
    """A call's arguments are between parentheses, each with its name."""

    def write(self, calls: list[tuple[str, str]], first: int = 0) -> str:
        texts = [f"{name}({_write_arguments(arguments)})" for name, arguments in calls]
        return f"{self.first}{(self.between or '').join(texts)}{self.last}"


LFM2 = PythonFormat(
    "lfm2", _BEGIN,
    first=f"{_BEGIN}[", call="", middle="(", after=")", between=", ", last=f"]{_END}",
    head=re.compile(rf"{re.escape(_BEGIN)}\s*\[\s*{_NAME}\s*\("), next=re.compile(rf"\s*,\s*{_NAME}\s*\("),
    tail=re.compile(rf"\s*\]\s*{re.escape(_END)}"), end=f"]{_END}", control=(_END,), spaced=False,
)  # fmt: skip


def python_format_of(template: str) -> PythonFormat | None:
    """The form that a chat template's source shows; None if it shows no such form."""
    return LFM2 if shows_lfm2(template) else None


def _write_arguments(text: str) -> str:
    """Arguments in JSON as Python writes them. What is no object, such as JSON that was cut off, stays."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if not isinstance(found, dict):
        return text
    return ", ".join(f"{key}={write_value(value)}" for key, value in found.items())


def write_value(value: Any) -> str:
    """A value of JSON in Python, with texts between double quotes."""
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{write_value(key)}: {write_value(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(write_value, value))}]"
    return text_in_json(value) if isinstance(value, str) else json.dumps(value)


def text_in_json(text: str) -> str:
    """A text in JSON. Halves of a pair of surrogates stay escapes, which JSON joins."""
    written = json.dumps(text, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half.group()):04x}", written)


class PythonGrammar(ValueGrammar):
    """Writes the rules of arguments, and of values in them."""

    comma, colon = ", ", ": "

    def arguments(self, value: Value) -> str:
        """The expression of a call's arguments."""
        if isinstance(value, Object):
            return self.members(value, lambda name: f"{name}=")
        assert isinstance(value, AnyValue)
        item = f'/{_IDENTIFIER}/ "=" {self._any(is_object=False)}'
        return f'({item} (", " {item})*)?'

    def _text(self, values: tuple[str, ...]) -> str:
        return one_of([write_value(value) for value in values]) if values else _TEXT

    def _scalar(self, value: Scalar) -> str:
        if value.kind == "boolean":
            return _words(*value.values or (True, False))
        return _words(None) if value.kind == "null" else super()._scalar(value)

    def _any_scalar(self) -> str:
        number = self._rule('%json {"type": "number"}')
        return f"{number} | {_words(*_WORDS)}"

    def _key(self, name: str) -> str:
        return f"{write_value(name)}{self.colon}"

    def _any_key(self, text: str) -> str:
        return f'{text} "{self.colon}"'


def _words(*values: bool | None) -> str:
    """The expression of one of these, in Python or in JSON: LFM2.5 writes what is in an object as JSON."""
    return one_of([text for value in values for text in (_WORDS[value], json.dumps(value))])


def python_value_of(value: Value | None) -> Value | None:
    """Arguments that this form can express: names of arguments must be names in Python."""
    if isinstance(value, Object):
        names = [name for name, _, _ in value.members]
        if not all(re.fullmatch(_IDENTIFIER, name) and not iskeyword(name) for name in names):
            return None
    return value if isinstance(value, (Object, AnyValue)) else None
