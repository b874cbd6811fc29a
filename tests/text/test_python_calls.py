"""Answers of LFM2: its tool calls, a list of calls in Python, are read as JSON in any pieces, and grammars
allow only valid ones.
"""

import ast
import json
import keyword
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airllm.text.answers import AnswerFormat, AnswerReader
from airllm.text.chat_template import ChatTemplate
from airllm.text.grammar import Grammars
from airllm.text.tools.formats import LFM2_JSON, format_of
from airllm.text.tools.python_formats import LFM2, python_format_of, python_value_of
from airllm.text.tools.python_reader import PythonCallReader
from airllm.text.tools.values import value_of
from tests.support.answers import QUESTION, cuts, read_in_pieces
from tests.support.engines import random_texts
from tests.text.test_bare_calls import tokenizer_with, tools_with

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where"},
        "days": {"type": "integer", "minimum": 0},
        "now": {"type": "boolean"},
        "unit": {"anyOf": [{"type": "string", "enum": ["C", "F"]}, {"type": "null"}], "default": None},
        "parts": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "object", "properties": {"y": {"type": "number"}, "x": {"type": ["integer", "null"]}}},
        "more": {},
    },
    "required": ["city", "days"],
}
TOOLS = tools_with(SCHEMA)
ARGUMENTS = {
    "city": 'New\n"York" {,}\\ \'\t)]<|tool_call_end|>', "days": 3, "now": True, "unit": None,
    "parts": ["a", "]}", ""], "at": {"y": -1.5, "x": None}, "more": [False, {"b c": "d"}, []],
}  # fmt: skip
CALLS = [("weather", ARGUMENTS), ("now", {}), ("any_2", {"a": [True, {"b": "c"}, []], "d": -2})]
WRITTEN = (
    BEGIN + r"""[weather(city="New\n\"York\" {,}\\ '\t)]<|tool_call_end|>", days=3, now=True, unit=None, """
    r"""parts=["a", "]}", ""], at={"y": -1.5, "x": None}, more=[False, {"b c": "d"}, []]), now(), """
    r"""any_2(a=[True, {"b": "c"}, []], d=-2)]""" + END
)
ENFORCED = WRITTEN.replace('<|tool_call_end|>", days', '", days')  # a control token is no text
OTHER = ENFORCED.replace("unit=None", 'unit="C"').replace('"]}"', "'\"'").replace("None}", "null}")
WRONG = (("weather", "train"), ("days=3", "days=-3"), ("days=3", "hours=3"), (", days=3", ""),
         ("now=True", "now=1"), ("unit=None", 'unit="K"'), ('"x": None', '"x": "1"'),
         ('y": -1.5', "y\": '1'"))  # fmt: skip
NO_CALLS = (f"{BEGIN}nothing", BEGIN, "a <|tool_call_st", "f()", f"{BEGIN}[f]")
# Templates like LFM2's, which drops calls, and like LFM2.5's, which writes them; both keep results.
DROPPING = (
    "{% if tools %}List of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
WRITING = (
    "{% if tools %}system: List of tools: [{{ tools | tojson }}]\n{% endif %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content }}{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}"
    "{% for c in m.tool_calls %}{{ '<|tool_call_start|>[' + c.function.name + '(' }}"
    "{% for key, value in c.function.arguments.items() %}{{ key }}='{{ value }}'{% endfor %}"
    "{{ ')]<|tool_call_end|>' }}{% endfor %}{{ '\n' }}{% endfor %}"
)


def read(text: str, pieces: list[str] | None = None) -> tuple[str, list[tuple[str, str]]]:
    found, _, calls = read_in_pieces(AnswerReader(None, PythonCallReader(LFM2)), pieces or [text])
    return found, calls


def as_objects(calls: list[tuple[str, str]]) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


def as_written(calls: list[tuple[str, object]]) -> str:
    return LFM2.write([(name, json.dumps(arguments)) for name, arguments in calls])


def test_templates_show_the_form():
    for template in (DROPPING, WRITING):
        assert python_format_of(template) is LFM2 and format_of(template) is LFM2_JSON
    assert python_format_of("<tool_call>") is None


def test_calls_are_written_in_python():
    assert as_written(CALLS) == WRITTEN


LETTERS = st.one_of(
    st.sampled_from("\"'\\\n\t\r\0()[]{},:=<|xuU019é🙂"), st.characters(exclude_categories=["Cs"])
)
TEXTS = st.text(LETTERS, max_size=12)
VALUES = st.recursive(
    st.one_of(
        TEXTS, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
NAMES = st.text("abz_", min_size=1, max_size=3).filter(lambda name: not keyword.iskeyword(name))
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=3)


@given(st.lists(st.tuples(st.sampled_from(("f", "g_2")), OBJECTS), min_size=1, max_size=3), st.data())
def test_any_arguments_survive(calls, data):
    written = as_written(calls)
    in_python = ast.parse(written.removeprefix(BEGIN).removesuffix(END)).body[0].value.elts
    for call, (name, arguments) in zip(in_python, calls, strict=True):
        found = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
        assert (call.func.id, found) == (name, arguments)
    places = data.draw(st.lists(st.integers(0, 2000), max_size=4))
    text, found = read(written, cuts(written, places))
    assert (text, as_objects(found)) == ("", calls)


@pytest.mark.parametrize(
    ("text", "arguments"),
    (
        ("f( a = 'x' ,b= [ 1 ,2 ] )", {"a": "x", "b": [1, 2]}),
        ("f(a='say \"hi\"', b=\"it's\")", {"a": 'say "hi"', "b": "it's"}),
        ("f(a={'b': true, 'c': false}, d=null)", {"a": {"b": True, "c": False}, "d": None}),
        ("f(a='one\ntwo')", {"a": "one\ntwo"}),
        (r"f(a='\x41\u00e9\U0001f642\101\0', b='\d+\/\'', c='a\
b')", {"a": "Aé🙂A\0", "b": r"\d+\/'", "c": "ab"}),
        (r"f(a='\ud83d\ude42', b='\xg1\u12\U00110000')", {"a": "🙂", "b": r"\xg1\u12\U00110000"}),
        ("f(a=1e5, b=-0.5, c={1: 2})", {"a": 1e5, "b": -0.5, "c": {"1": 2}}),
    ),
)  # fmt: skip
def test_what_models_write_otherwise_is_read(text, arguments):
    whole = f"{BEGIN}[{text}]{END}"
    for pieces in ([whole], [*whole, ""]):
        found, calls = read(whole, pieces)
        assert (found, as_objects(calls)) == ("", [("f", arguments)])


# ------------------------------------------------------------------------------------------------ grammars


@pytest.fixture(
    scope="module", params=((), (BEGIN, END)), ids=("markers are text", "markers are control tokens")
)
def tokenizer(request, tmp_path_factory):
    return tokenizer_with(tmp_path_factory.mktemp("python"), request.param)


@pytest.fixture(scope="module")
def answers(tokenizer):
    return AnswerFormat(tokenizer, ChatTemplate(DROPPING, Path("model")), Grammars(tokenizer))


def allowed(new, tokenizer, text: str) -> int | None:
    return random_texts.allowed(new, tokenizer, text, special=True)


def test_calls_in_the_history_are_as_the_model_writes_them(answers, tokenizer):
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"a": [null, "x"]}'}}
    history = [*QUESTION, {"role": "assistant", "content": "I look. ", "reasoning_content": "Hm",
                           "tool_calls": [call]}, {"role": "tool", "content": "5"}]  # fmt: skip
    for tools in (TOOLS, None):
        prompt = answers.plan(history, tools=tools).prompt
        assert prompt.endswith(f'assistant: I look. {BEGIN}[now(a=[None, "x"])]{END}\ntool: 5\n')
    writing = AnswerFormat(tokenizer, ChatTemplate(WRITING, Path("model")), Grammars(tokenizer))
    prompt = writing.plan(history, tools=TOOLS).prompt  # the template writes them itself
    assert f"assistant: I look. <think>Hm</think>{BEGIN}[now(a='[None, 'x']')]{END}\ntool: 5\n" in prompt


@pytest.mark.parametrize(
    "parameters",
    (
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}},
        {"type": "object", "properties": {"a-b": {"type": "string"}}},
        {"type": "object", "properties": {"from": {"type": "string"}}},
        {"type": "object", "minProperties": 1},
    ),
)
def test_what_python_cannot_express_is_asked_for_as_json(parameters, answers, tokenizer):
    assert python_value_of(value_of(parameters, "tools")) is None
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    plan = answers.plan(QUESTION, tools=[tool], tool_choice="required")
    assert "You can call these functions" in plan.prompt and f'{BEGIN}[{{"name": "NAME"' in plan.prompt
    (key,) = parameters.get("properties", "a")
    written = LFM2_JSON.write([("f", json.dumps({key: "x"}))])
    assert allowed(plan.new_constraint, tokenizer, written) is None
    assert read_in_pieces(plan.new_reader(), [written])[2] == [("f", json.dumps({key: "x"}))]
