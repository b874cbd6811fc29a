"""The grammar of an answer: thoughts, text, tool calls and JSON, in the engine's variant of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airllm.text.reasoning import ReasoningTags
from airllm.text.tools.bare_formats import BareFormat, BareGrammar
from airllm.text.tools.formats import NUMBER, PYTHON_TAG, ToolFormat
from airllm.text.tools.python_formats import PythonFormat, PythonGrammar
from airllm.text.tools.values import Value
from airllm.text.tools.xml_formats import Argument, XmlFormat
from airllm.text.vocabulary import Vocabulary

_MOST_CALLS = 32
_MARKER = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")  # what may be a control token
_ANY_TEXT = "/(?s:.*)/"

Document = Mapping[str, Any]  # the engine's document of a JSON schema
Arguments = Document | Sequence[Argument] | Value  # the latter: as XML, as Gemma 4 and LFM2 do


@dataclass(frozen=True)
class AnswerForm:
    """What an answer may be. `calls`: the names of tools and the document of their arguments, or these.
    `thoughts`: the tags if there may be thoughts; `thinking` if they have begun. `json`: the document of the
    text.
    """

    format: ToolFormat | None = None
    calls: Sequence[tuple[str, Arguments]] = ()
    required: bool = False
    parallel: bool = True
    json: Document | None = None
    thoughts: ReasoningTags | None = None
    thinking: bool = False

    @property
    def is_free(self) -> bool:
        """Whether any text will do."""
        return not self.calls and self.json is None


def control_tokens(texts: Sequence[str], vocabulary: Vocabulary) -> dict[str, int]:
    """The markers in these texts that are control tokens."""
    markers = {marker for text in texts for marker in _MARKER.findall(text)}
    known = {marker: vocabulary.ids[marker] for marker in markers if marker in vocabulary.ids}
    return {marker: token for marker, token in known.items() if vocabulary.is_special(token)}


def answer_grammar(form: AnswerForm, control: Mapping[str, int]) -> str:
    """The grammar of a form that is not free. `control`: the control tokens among its markers."""
    return _Writer(form, control).grammar()


@dataclass
class _Writer:
    form: AnswerForm
    control: Mapping[str, int]
    rules: list[str] = field(default_factory=list)

    def grammar(self) -> str:
        self.rules.append(f"start: {self._thoughts()} answer")
        options = [] if self.form.required else [self._text()]
        if self.form.calls:
            options.append(self._calls())
        self.rules.append(f"answer: {' | '.join(options)}")
        return "\n".join(self.rules)

    def _thoughts(self) -> str:
        """The thoughts before an answer; they may be absent if the prompt has not begun them."""
        if self.form.thoughts is None:
            return ""
        self.rules.append(f"thoughts: {self._up_to('thoughts_end', self.form.thoughts.end, _ANY_TEXT)} GAP")
        self.rules.append(r"GAP: /[\n ]{0,4}/")
        return (
            "thoughts"
            if self.form.thinking
            else f"({self._thoughts_begin(self.form.thoughts.begin)} thoughts)?"
        )

    def _thoughts_begin(self, begin: str) -> str:
        """The tag before thoughts. White space may come before it: GLM 4.5 begins with a line end."""
        if any(marker in begin for marker in self.control):
            return f"GAP? {self._literal(begin)}"
        self.rules.append(rf"BEGIN: /[\n ]{{0,4}}{_escape(begin)}/")
        return "BEGIN"

    def _text(self) -> str:
        """The answer without calls."""
        if self.form.json is not None:
            return _json(self.form.json)
        begin, end = self._around_text()
        self.rules.append(f"text: {begin} PLAIN {end}")
        if self.form.format and self.form.format.trigger is None:
            self._plain(r'\s*\{\s*"name"')
        return "text"

    def _around_text(self) -> tuple[str, str]:
        """What may stand before and after a free text."""
        around = self.form.format.around_text if self.form.format else ()
        if not around or not set(around) <= set(self.control):
            return "", ""
        begin, end = (f"<[{self.control[marker]}]>?" for marker in around)
        return begin, end

    def _calls(self) -> str:
        """One call or several, after text if it is free."""
        format = self.form.format
        assert format
        for i, (name, document) in enumerate(self.form.calls):
            head, tail = self._head(format, name), self._literal(format.after)
            self.rules.append(f"call_{i}: {head} {self._arguments(i, document)} {tail}")
        self.rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(self.form.calls)))}")
        more = ""
        if self.form.parallel and format.between is not None:
            more = f"({self._literal(format.between)} call){{0,{_MOST_CALLS - 1}}}"
        return f"{self._beginning(format)} call {more} {self._literal(format.last)}"

    def _head(self, format: ToolFormat, name: str) -> str:
        """What a call has before its arguments."""
        parts = f"{format.call}{name}{format.middle}".split(NUMBER)
        return " /[0-9]{1,3}/ ".join(map(self._literal, parts))

    def _arguments(self, call: int, arguments: Arguments) -> str:
        """The arguments of a call: JSON, or an element for each, in the order of the schema."""
        if isinstance(arguments, Mapping):
            return _json(arguments)
        if not isinstance(arguments, Sequence):
            return self._value(call, arguments)
        parts = []
        for i, each in enumerate(arguments):
            written = self._argument(f"value_{call}_{i}", each)
            parts.append(written if each.required else f"({written})?")
        return " ".join(parts)

    def _value(self, call: int, arguments: Value) -> str:
        format, prefix = self.form.format, f"value_{call}_"
        grammar: BareGrammar | PythonGrammar
        if isinstance(format, PythonFormat):
            grammar = PythonGrammar(prefix)
            written = grammar.arguments(arguments)
        else:
            assert isinstance(format, BareFormat)
            grammar = BareGrammar(self._literal(format.quote), format.quote in self.control, prefix)
            written = grammar.write(arguments)
        self.rules += grammar.rules
        return written

    def _argument(self, rule: str, argument: Argument) -> str:
        format = self.form.format
        assert isinstance(format, XmlFormat)
        is_json = isinstance(argument.values, Mapping)
        key_end = (is_json and format.json_key_end) or format.key_end
        head, end = self._literal(f"{format.key}{argument.key}{key_end}"), format.value_end
        if argument.values is None:
            return f"{head} {self._up_to(rule, end, _ANY_TEXT)}"
        if isinstance(argument.values, Mapping):
            return f"{head} {_json(argument.values)} {self._literal(end)}"
        return f"{head} ({' | '.join(map(json.dumps, argument.values))}) {self._literal(end)}"

    def _beginning(self, format: ToolFormat) -> str:
        """What precedes the first call."""
        if format.trigger is None:
            return f"<[{self.control[PYTHON_TAG]}]>?" if PYTHON_TAG in self.control else ""
        if self.form.required or self.form.json is not None:
            return self._literal(format.first)
        self._plain("")
        rest = self._literal(format.first.removeprefix(format.trigger))
        return f"{self._up_to('lead', format.trigger, 'PLAIN')} {rest}"

    def _plain(self, but: str) -> None:
        """The terminal of free text, which does not begin like thoughts, nor with the expression `but`."""
        begins = [but] if but else []
        if self.form.thoughts is not None and not self.form.thinking:
            begins.append(r"\s*" + _escape(self.form.thoughts.begin))
        hidden = "".join(f" & ~/(?:{begin})(?s:.*)/" for begin in begins)
        self.rules.append(f"PLAIN: {_ANY_TEXT}{hidden}")

    def _up_to(self, rule: str, marker: str, text: str) -> str:
        """Text up to a marker, and the marker."""
        if marker in self.control:  # a control token cannot be part of a text
            return f"{text} {self._literal(marker)}"
        self.rules.append(f"{rule}[lazy]: {text} {self._literal(marker)}")
        return rule

    def _literal(self, text: str) -> str:
        """Exactly this text, with its control tokens. SentencePiece puts a space between a control token and
        the text after it, so models may have learned one.
        """
        parts = re.split(f"({'|'.join(map(re.escape, self.control))})", text) if self.control else [text]
        space = ' " "?' if self.form.format is None or self.form.format.spaced else ""
        return " ".join(
            f"<[{self.control[part]}]>{space}"
            if part in self.control
            else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        )


def _escape(text: str) -> str:
    """The expression of exactly this text, on one line."""
    return re.escape(text).replace("\\\n", r"\n").replace("/", r"\/")


def _json(document: Document) -> str:
    return f"%json {json.dumps(document)}"
