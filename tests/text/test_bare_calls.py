"""Answers of Gemma 4: its tool calls are read as JSON in any pieces, grammars allow only valid ones, and its
thoughts are apart.
"""

import json
from pathlib import Path

import jsonschema
import pytest
from tokenizers import AddedToken

from airllm.text.answers import AnswerFormat, AnswerReader
from airllm.text.chat_template import ChatTemplate
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.grammar import Grammars
from airllm.text.tools.bare_formats import GEMMA, bare_format_of
from airllm.text.tools.bare_reader import BareCallReader
from airllm.text.tools.values import value_of
from tests.support.engines import random_texts
from tests.support.engines.random_texts import generate
from tests.support.models import speaking_model
from tests.text.test_answers import QUESTION, cuts, read_in_pieces

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
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "description": None}},
    {"type": "function", "function": {"name": "any_2", "strict": False, "parameters": SCHEMA}},
]
ARGUMENTS = {"At": {"x": None, "y": 1.5}, "city": 'New\n"York" {,}\\', "days": 3, "parts": ["a", "]}"]}
CALLS = [("weather", ARGUMENTS), ("now", {}), ("any_2", {"a": [True, {"b": "c"}, []], "d": -2})]
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


def test_calls_are_read_in_any_pieces():
    whole = f"Let me see.\n\n{written(*CALLS)}\n"
    text, calls = read(whole)
    assert (text, as_objects(calls)) == ("Let me see.", CALLS)
    assert read(whole, [*whole, ""]) == (text, calls)
    for at in range(1, len(whole), 7):
        assert read(whole, cuts(whole, [at, 2 * at, at * at])) == (text, calls)


def test_calls_that_are_cut_off_have_a_beginning_of_the_arguments():
    whole = written(*CALLS)
    _, all_calls = read(whole)
    for end in range(len(whole)):
        text, calls = read(whole[:end])
        if not calls:
            assert text == whole[:end]
        for (name, begun), (full_name, full) in zip(calls, all_calls, strict=False):
            assert name == full_name and full.startswith(begun)


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


@pytest.mark.parametrize("text", ("<|tool_call>nothing", "<|tool_call>", "a <|tool_call", "call:f{}"))
def test_what_is_no_call_is_text(text):
    assert read(text) == (text, [])


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


def test_the_template_gets_the_tools_and_only_valid_calls_are_allowed(answers, tokenizer):
    plan = answers.plan(QUESTION, tools=TOOLS)
    assert "<|tool>weather<tool|>" in plan.prompt and "You can call" not in plan.prompt
    for text in (written(*CALLS), f"Let me see.\n{written(*CALLS)}", "No <b>tool</b>.", written(CALLS[2])):
        assert allowed(plan.new_constraint, tokenizer, text) is None, text
    whole = written(CALLS[0])
    for old, new in (("weather", "train"), ("days:3", "days:-3"), ("days:3", "hours:3"), (",days:3", ""),
                     ("null", "1"), ('y:1.5', 'y:<|"|>1.5<|"|>')):  # fmt: skip
        assert old in whole and allowed(plan.new_constraint, tokenizer, whole.replace(old, new)) is not None
    single = answers.plan(QUESTION, tools=TOOLS, parallel_tool_calls=False)
    assert allowed(single.new_constraint, tokenizer, written(*CALLS)) is not None
    _, _, calls = read_in_pieces(plan.new_reader(), [written(*CALLS)])
    assert as_objects(calls) == CALLS


def test_required_calls_are_valid(answers, tokenizer):
    schema = {
        "type": "object",
        "properties": {"unit": {"type": "string", "enum": ["C", "F"]}, "now": {"type": "boolean"},
                       "at": {"type": "array", "items": {"type": "integer", "enum": [1, 2]}}},
        "required": ["now"],
    }  # fmt: skip
    tool = {"type": "function", "function": {"name": "unit", "parameters": schema}}
    plan = answers.plan(QUESTION, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert allowed(plan.new_constraint, tokenizer, "No.") == 0
    found = 0
    for seed in range(12):
        if text := generate(plan.new_constraint, tokenizer, seed, 400):
            left, _, ((name, arguments),) = read_in_pieces(plan.new_reader(), [text])
            assert (left, name) == ("", "unit")
            jsonschema.validate(json.loads(arguments), schema)
            found += 1
    assert found


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
