"""The answer that a conversation asks for: its prompt, what restricts it, and a reader of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from airllm.text.chat_template import ChatTemplate
from airllm.text.grammar import GrammarError, Grammars
from airllm.text.grammar.grammars import NewGrammarConstraint, with_options
from airllm.text.grammar.schema import check_schema
from airllm.text.harmony import MARKERS, HarmonyReader, harmony_grammar, uses_harmony
from airllm.text.reasoning import ReasoningReader, has_thought, is_thinking, tags_of
from airllm.text.tokenizer import Tokenizer
from airllm.text.tools.bare_formats import BareFormat, bare_format_of
from airllm.text.tools.bare_reader import BareCallReader
from airllm.text.tools.definitions import Tool, choose_tools, read_tools
from airllm.text.tools.formats import HARMONY, HERMES, ToolFormat, format_of
from airllm.text.tools.grammar import AnswerForm, Arguments, Document, answer_grammar, control_tokens
from airllm.text.tools.prompting import (
    described_in_messages,
    with_parsed_arguments,
    with_written_calls,
    with_written_results,
)
from airllm.text.tools.python_formats import PythonFormat, python_format_of, python_value_of
from airllm.text.tools.python_reader import PythonCallReader
from airllm.text.tools.reader import CallDelta, Delta, ToolCallReader
from airllm.text.tools.values import value_of
from airllm.text.tools.xml_formats import XmlFormat, arguments_of, xml_format_of
from airllm.text.tools.xml_reader import Schemas, XmlCallReader

Messages = Sequence[Mapping[str, Any]]
OwnFormat: TypeAlias = XmlFormat | BareFormat | PythonFormat  # of arguments that are not JSON


class Reader(Protocol):
    """Reads the thoughts, the text and the tool calls of an answer, piece by piece. Together, the deltas
    depend only on the whole text.
    """

    @property
    def calls(self) -> int:
        """How many calls have begun."""

    def read(self, text: str, is_last: bool = False) -> Delta:
        """What is final after this piece."""


class AnswerReader:
    """A `Reader` of thoughts in tags, and of calls in a text."""

    def __init__(self, thoughts: ReasoningReader | None = None, calls: ToolCallReader | None = None):
        self._thoughts, self._calls = thoughts, calls

    @property
    def calls(self) -> int:
        return self._calls.calls if self._calls else 0

    def read(self, text: str, is_last: bool = False) -> Delta:
        reasoning = ""
        deltas: list[CallDelta] = []
        if self._thoughts:
            reasoning, text = self._thoughts.read(text, is_last)
        if self._calls:
            text, deltas = self._calls.read(text, is_last)
        return Delta(text, reasoning, tuple(deltas))


@dataclass(frozen=True)
class AnswerPlan:
    """How to get an answer: encode `prompt` without a bos token, pass `new_constraint` and `shown_tokens` to
    the request, and read the text with a reader of `new_reader`.
    """

    prompt: str
    new_constraint: NewGrammarConstraint | None
    shown_tokens: frozenset[int]
    new_reader: Callable[[], Reader]


class AnswerFormat:
    """The form of a model's answers. It plans answers, from any thread."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, grammars: Grammars | None = None):
        self._tokenizer, self._template = tokenizer, template
        self._grammars = grammars or Grammars(tokenizer)
        self._thoughts = tags_of(template.source)
        self._in_channels = uses_harmony(template.source, tokenizer.vocabulary)
        self._shown = format_of(template.source)
        if self._shown is HARMONY and not self._in_channels:
            self._shown = None
        self._own: OwnFormat | None = None
        if template.traits.takes_tools:
            source = template.source
            self._own = xml_format_of(source) or bare_format_of(source) or python_format_of(source)
        self._known = self._shown if template.traits.takes_tools and self._own is None else None
        self._with_tools: AnswerFormat | None = None
        if template.with_tools:
            other = AnswerFormat(tokenizer, template.with_tools, self._grammars)
            self._with_tools = other if other._own or other._known else None

    @property
    def tool_format(self) -> ToolFormat:
        """The form of tool calls: the template's, or one that the prompt describes. A template may render
        calls without telling a model of its tools (DeepSeek).
        """
        return self._shown or HERMES

    def plan(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = "auto",
        parallel_tool_calls: bool = True,
        response_format: Mapping[str, Any] | None = None,
        template_values: Mapping[str, Any] | None = None,
    ) -> AnswerPlan:
        """The plan for the answer to `messages`; the other arguments are those of OpenAI's chat completions.

        Raises GrammarError for tools or a response format that are invalid or cannot be enforced, and
        ChatTemplateError if the template rejects the messages.
        """
        known = read_tools(tools)
        with_tools = self._template_for(known, tool_choice)
        parts = (known, tool_choice, parallel_tool_calls, response_format, template_values or {})
        return (with_tools or self)._plan(messages, *parts)

    def _template_for(self, known: tuple[Tool, ...], tool_choice: Any) -> AnswerFormat | None:
        """The form of the template for tools, if there is one and it can write what is asked for."""
        other = self._with_tools
        if other is None or not known or tool_choice == "none":
            return None
        return other if choose_tools(known, tool_choice).required or not other._only_calls else None

    @property
    def _only_calls(self) -> bool:
        return self._known is not None and self._known.only_calls

    def _plan(
        self,
        messages: Messages,
        known: tuple[Tool, ...],
        tool_choice: Any,
        parallel_tool_calls: bool,
        response_format: Mapping[str, Any] | None,
        template_values: Mapping[str, Any],
    ) -> AnswerPlan:
        choice, schema = choose_tools(known, tool_choice), _response_schema(response_format)
        described = () if tool_choice == "none" else known  # else the model would call them as text
        own = self._in_own_form(known)
        native = self._known is not None or own is not None
        prompt = self._render(messages, described, template_values, native)
        thoughts = self._thoughts if self._thoughts and not has_thought(prompt, self._thoughts) else None
        form = AnswerForm(
            format=(self._own if own is not None else self.tool_format) if choice.tools else None,
            calls=[(tool.name, self._arguments(tool, own)) for tool in choice.tools],
            required=choice.required,
            parallel=parallel_tool_calls,
            json=self._document(*schema) if schema else None,
            thoughts=thoughts,
            thinking=thoughts is not None and is_thinking(prompt, thoughts),
        )
        markers = MARKERS if self._in_channels else _markers(form)
        control = control_tokens(markers, self._tokenizer.vocabulary)
        constraint = None if form.is_free else self._compile(form, control)
        schemas = {tool.name: tool.parameters for tool in known}
        new_reader = partial(self._new_reader, form, schemas)
        hidden = form.format.around_text if form.format else ()
        shown = frozenset(token for marker, token in control.items() if marker not in hidden)
        return AnswerPlan(prompt, constraint, shown, new_reader)

    def _in_own_form(self, tools: Sequence[Tool]) -> dict[str, Arguments] | None:
        """The arguments of each tool, if the template's form is not JSON and a grammar of it enforces all."""
        if self._own is None:
            return None
        found = {tool.name: _own_arguments(self._own, tool) for tool in tools}
        whole = {name: some for name, some in found.items() if some is not None}
        return whole if len(whole) == len(tools) else None

    def _arguments(self, tool: Tool, own: Mapping[str, Arguments] | None) -> Arguments:
        document = self._document(tool.enforced, tool.parameter)
        return document if own is None else own[tool.name]

    def _render(
        self, messages: Messages, tools: tuple[Tool, ...], values: Mapping[str, Any], native: bool
    ) -> str:
        if native or not (tools or _has_calls(messages)):
            described = self._template.traits.needs_descriptions if tools else False
            definitions = [tool.definition(described) for tool in tools] or None
            fitting = with_parsed_arguments(self._with_calls(messages))
            return self._template.render_alone(fitting, tools=definitions, **values)
        in_its_form = self._own is None and self._shown is not None
        as_texts = not (in_its_form and self._template.traits.takes_calls_and_results)
        told = described_in_messages(messages, tools, self.tool_format, as_texts)
        return self._template.render_alone(told, **values)

    def _with_calls(self, messages: Messages) -> Messages:
        """The messages with calls and results as text if the template drops them, and the text has their
        form.
        """
        format, traits = self._own or self._known, self._template.traits
        if format is None or isinstance(format, (XmlFormat, BareFormat)) or not _has_calls(messages):
            return messages
        written = with_written_calls(messages, format) if traits.drops_calls else messages
        return with_written_results(written) if traits.drops_results else written

    def _document(self, schema: Any, parameter: str) -> Document:
        """The engine's document of a schema. Compiles it alone too, for an error that names its place."""
        self._grammars.json_schema(schema, parameter)
        return with_options(check_schema(schema, parameter).document())

    def _compile(self, form: AnswerForm, control: Mapping[str, int]) -> NewGrammarConstraint:
        parameter = "tools" if form.calls else "response_format"
        write = harmony_grammar if self._in_channels else answer_grammar
        return self._grammars.lark(write(form, control), parameter)

    def _new_reader(self, form: AnswerForm, schemas: Schemas) -> Reader:
        if self._in_channels:
            return HarmonyReader(HARMONY.new_id)
        calls: ToolCallReader | None = None
        if isinstance(form.format, XmlFormat):
            calls = XmlCallReader(form.format, schemas)
        elif isinstance(form.format, BareFormat):
            calls = BareCallReader(form.format)
        elif isinstance(form.format, PythonFormat):
            calls = PythonCallReader(form.format)
        elif form.format:
            calls = ToolCallReader(form.format)
        return AnswerReader(ReasoningReader(form.thoughts, form.thinking) if form.thoughts else None, calls)


def _own_arguments(format: OwnFormat, tool: Tool) -> Arguments | None:
    """The arguments of a tool, if a grammar of this form enforces them."""
    if isinstance(format, XmlFormat):
        return arguments_of(tool.enforced, tool.parameter) if tool.is_strict else None
    value = value_of(tool.enforced, tool.parameter)
    return python_value_of(value) if isinstance(format, PythonFormat) else value


def _has_calls(messages: Messages) -> bool:
    return any(
        isinstance(each, Mapping) and (each.get("tool_calls") or each.get("role") == "tool")
        for each in messages
    )


def _markers(form: AnswerForm) -> list[str]:
    """The texts whose control tokens belong to the answer."""
    format, thoughts = form.format, form.thoughts
    calls: list[str] = []
    if format:
        calls = [format.first, format.middle, format.between or "", format.last]
        calls += [*format.control, *format.around_text]
    return [*calls, *([thoughts.begin, thoughts.end] if thoughts else [])]


def _response_schema(response_format: Mapping[str, Any] | None) -> tuple[Any, str] | None:
    """The schema that a response format asks for, and its place in the request; None for any text."""
    kind = "text" if response_format is None else response_format.get("type")
    if kind == "text" or response_format is None:
        return None
    if kind == "json_object":
        return {"type": "object"}, "response_format"
    if kind != "json_schema":
        expected = 'expected "text", "json_object" or "json_schema"'
        raise GrammarError("response_format.type", "invalid value", detail=f"found {kind!r}, {expected}")
    described = response_format.get("json_schema")
    if not isinstance(described, Mapping) or "schema" not in described:
        found = f"found {described!r}, expected an object with a name and a schema"
        raise GrammarError("response_format.json_schema", "invalid value", detail=found)
    return described["schema"], "response_format.json_schema.schema"
