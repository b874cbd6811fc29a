"""Calls with arguments as Gemma 4 writes them: names without quotes, and texts between quote tokens.

    <|tool_call>call:weather{city:<|"|>New York<|"|>,days:3}<tool_call|>

Nothing in a text is escaped, so it cannot contain the quote. Members are in the order of their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from airllm.text.tools.formats import ToolFormat
from airllm.text.tools.values import Object, ValueGrammar, one_of


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


class BareGrammar(ValueGrammar):
    """Writes the rules of values. `quote`: its expression; `is_control`: it is a control token, which no text
    contains.
    """

    def __init__(self, quote: str, is_control: bool, prefix: str):
        super().__init__(prefix)
        self._quote, self._is_control = quote, is_control

    def members(self, of: Object, key: Any) -> str:
        ordered = sorted(of.members, key=lambda member: member[0].lower())
        return super().members(Object(tuple(ordered)), key)

    def _text(self, values: tuple[str, ...]) -> str:
        if values:
            return f"{self._quote} {one_of(values)} {self._quote}"
        if self._is_control:
            return f"{self._quote} /(?s:.*)/ {self._quote}"
        end = f"{self._prefix}end_{len(self.rules)}"
        self.rules.append(f"{end}[lazy]: /(?s:.*)/ {self._quote}")
        return f"{self._quote} {end}"
