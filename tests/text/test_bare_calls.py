"""Answers of Gemma 4: its tool calls are read as JSON in any pieces, grammars allow only valid ones, and its
thoughts are apart.
"""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken

from airllm.text.answers import AnswerFormat, AnswerReader
from airllm.text.chat_template import ChatTemplate
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.grammar import Grammars
from airllm.text.tools.bare_formats import GEMMA, bare_format_of
from airllm.text.tools.bare_reader import BareCallReader
from airllm.text.tools.values import value_of
from tests.support.answers import QUESTION, read_in_pieces
from tests.support.engines import random_texts
from tests.support.models import speaking_model

MARKERS = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where"},
        "days": {"type": "integer", "minimum": 0},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "parts": {"type": "array", "items": {"type": "string"}},
        "At": {"type": "object", "properties": {"y": {"type": "number"}, "x": {"type": "null"}}},
    },
    "required": ["city", "days"],
}


def tools_with(schema: dict) -> list[dict]:
    """Tools that take such arguments, none, and any."""
    return [
        {"type": "function", "function": {"name": "weather", "parameters": schema}},
        {"type": "function", "function": {"name": "now", "description": None}},
        {"type": "function", "function": {"name": "any_2", "strict": False, "parameters": schema}},
    ]


TOOLS = tools_with(SCHEMA)
ARGUMENTS = {"At": {"x": None, "y": 1.5}, "city": 'New\n"York" {,}\\', "days": 3, "parts": ["a", "]}"]}
CALLS = [("weather", ARGUMENTS), ("now", {}), ("any_2", {"a": [True, {"b": "c"}, []], "d": -2})]
WRONG = (("weather", "train"), ("days:3", "days:-3"), ("days:3", "hours:3"), (",days:3", ""), ("null", "1"),
         ('y:1.5', 'y:<|"|>1.5<|"|>'))  # fmt: skip
NO_CALLS = ("<|tool_call>nothing", "<|tool_call>", "a <|tool_call", "call:f{}")
# A template like Gemma 4's: names without quotes in the order of the alphabet, texts between quote tokens.
TEMPLATE = (
    "{%- macro value(of) -%}{%- if of is string -%}<|\"|>{{ of }}<|\"|>{%- elif of is boolean -%}"
    "{{ 'true' if of else 'false' }}{%- elif of is none -%}null"
    "{%- elif of is mapping -%}{ {{- members(of) -}} }{%- elif of is sequence -%}["
    "{%- for one in of -%}{{ value(one) }}{{ ',' if not loop.last }}{%- endfor -%}]"
    "{%- else -%}{{ of }}{%- endif -%}{%- endmacro -%}"
    "{%- macro members(of) -%}{%- for key, one in of | dictsort -%}{{ key }}:{{ value(one) }}"
    "{{ ',' if not loop.last }}{%- endfor -%}{%- endmacro -%}"
    "{%- for tool in tools or [] -%}<|tool>{{ tool.function.name }}<tool|>{%- endfor -%}"
    "{%- for m in messages -%}<|turn>{{ m.role }}\n{{ m.content or '' }}"
    "{%- for call in m.tool_calls or [] -%}<|tool_call>call:{{ call.function.name ~ '{' }}"
    "{{ members(call.function.arguments) ~ '}' }}<tool_call|>{%- endfor -%}<turn|>\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|turn>model\n"
    "{{- '<|channel>thought\n<channel|>' if enable_thinking is false }}{%- endif -%}"
)  # fmt: skip


def written(*calls: tuple[str, object]) -> str:
    """Calls as the template renders them."""
    template = ChatTemplate(TEMPLATE, Path("model"))
    made = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    text = template.render([{"role": "assistant", "tool_calls": made}])
    return text[text.index("<|tool_call>") : text.index("<turn|>")]


def read(text: str, pieces: list[str] | None = None) -> tuple[str, list[tuple[str, str]]]:
    found, _, calls = read_in_pieces(AnswerReader(None, BareCallReader(GEMMA)), pieces or [text])
    return found, calls


def as_objects(calls: list[tuple[str, str]]) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


def test_the_template_shows_the_form():
    assert bare_format_of(TEMPLATE) is GEMMA and bare_format_of("<tool_call>call:") is None
    assert written(("f", {"b": 1, "a": "x"})) == '<|tool_call>call:f{a:<|"|>x<|"|>,b:1}<tool_call|>'


@pytest.mark.parametrize(
    ("text", "arguments"),
    (
        ('<|tool_call> call: f { a : <|"|><|"|> , b : None } <tool_call|>', {"a": "", "b": None}),
        ('<|tool_call>call:f{<|"|>a<|"|>:{<|"|>b<|"|>:[1,2]}}<tool_call|>', {"a": {"b": [1, 2]}}),
        ("<|tool_call>call:f{a:Rome,b:1e5}<tool_call|>", {"a": "Rome", "b": 1e5}),
    ),
)
def test_what_models_write_otherwise_is_read(text, arguments):
    assert [(text, [("f", arguments)])] == [(text, as_objects(read(text)[1]))] and not read(text)[0]


# ------------------------------------------------------------------------------------------------ grammars


def tokenizer_with(folder: Path, markers: tuple[str, ...]):
    speaking_model.write(folder)
    made = speaking_model.tokenizer()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in markers])
    made.save(str(folder / "tokenizer.json"))
    return folder_tokenizer(folder)


@pytest.fixture(scope="module", params=((), MARKERS), ids=("markers are text", "markers are control tokens"))
def tokenizer(request, tmp_path_factory):
    return tokenizer_with(tmp_path_factory.mktemp("bare"), request.param)


@pytest.fixture(scope="module")
def answers(tokenizer):
    return AnswerFormat(tokenizer, ChatTemplate(TEMPLATE, Path("model")), Grammars(tokenizer))


def allowed(new, tokenizer, text: str) -> int | None:
    return random_texts.allowed(new, tokenizer, text, special=True)


def test_thoughts_come_before_a_call(answers, tokenizer):
    plan = answers.plan(QUESTION, tools=TOOLS)
    text = f"<|channel>thought\nRain?\n<channel|>{written(CALLS[1])}"
    assert allowed(plan.new_constraint, tokenizer, text) is None
    for pieces in ([text], [*text]):
        assert read_in_pieces(plan.new_reader(), pieces) == ("", "Rain?", [("now", "{}")])
    off = answers.plan(QUESTION, tools=TOOLS, template_values={"enable_thinking": False})
    assert off.prompt.endswith("<|channel>thought\n<channel|>")
    if tokenizer.id_of("<|channel>"):  # else that is any text
        assert allowed(off.new_constraint, tokenizer, text) == 0


@pytest.mark.parametrize(
    "parameters",
    (
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}},
        {"type": "object", "properties": {"a": {"type": ["string", "null"], "enum": ["x", None]}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a b": {"type": "string"}}},
        {"type": "object", "minProperties": 1},
    ),
)
def test_what_cannot_be_enforced_is_asked_for_as_json(parameters, answers, tokenizer):
    assert value_of(parameters, "tools") is None
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    plan = answers.plan(QUESTION, tools=[tool], tool_choice="required")
    assert "You can call these functions" in plan.prompt
