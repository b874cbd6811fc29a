"""Tool calls as XML: what models write is read as JSON, in any pieces; grammars allow only valid calls."""

import json
from pathlib import Path

import pytest

from airllm.text.answers import AnswerFormat, AnswerReader
from airllm.text.chat_template import ChatTemplate
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.grammar import Grammars
from airllm.text.tools.xml_formats import (
    DSML,
    GLM47_XML,
    GLM_XML,
    MINIMAX_XML,
    QWEN_XML,
    SEED_XML,
    XmlFormat,
    arguments_of,
    xml_format_of,
)
from airllm.text.tools.xml_reader import XmlCallReader
from tests.support.answers import QUESTION, TURNS, read_in_pieces
from tests.support.engines.random_texts import allowed
from tests.support.models import speaking_model

FORMATS = (QWEN_XML, SEED_XML, GLM_XML, GLM47_XML, MINIMAX_XML, DSML)
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "parts": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city", "days"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "description": None}},
]
SCHEMAS = {"weather": SCHEMA}
# As the makers' templates render two calls; the first has a text of several lines.
WRITTEN = {
    QWEN_XML: "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork <b>\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n<parameter=parts>\n[\"a\", \"}\"]\n</parameter>\n</function>\n"
    "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    SEED_XML: "<seed:tool_call>\n<function=weather>\n<parameter=city>New\nYork <b></parameter>\n"
    "<parameter=days>3</parameter>\n<parameter=parts>[\"a\", \"}\"]</parameter>\n</function>\n"
    "</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    GLM_XML: "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>New\nYork <b></arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>parts</arg_key>\n"
    "<arg_value>[\"a\", \"}\"]</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
    GLM47_XML: "<tool_call>weather<arg_key>city</arg_key><arg_value>New\nYork <b></arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>parts</arg_key>"
    "<arg_value>[\"a\", \"}\"]</arg_value></tool_call><tool_call>now</tool_call>",
    MINIMAX_XML: '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">New\nYork <b>'
    '</parameter>\n<parameter name="days">3</parameter>\n<parameter name="parts">["a", "}"]</parameter>\n'
    '</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    DSML: '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">New\nYork <b></｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="parts" string="false">["a", "}"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
}  # fmt: skip
CALLS = [("weather", {"city": "New\nYork <b>", "days": 3, "parts": ["a", "}"]}), ("now", {})]
NO_CALLS = {QWEN_XML: ("<tool_call>\nnothing", "<tool_call>", "a <tool_call", '<tool_call>{"name": "f"}')}
TEMPLATES = {
    format: "{% if tools %}{{ tools | tojson }}" + text + "{% endif %}" + TURNS
    for format, text in WRITTEN.items()
}


def read(format: XmlFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    text, _, calls = read_in_pieces(AnswerReader(None, XmlCallReader(format, SCHEMAS)), pieces)
    return text, calls


@pytest.mark.parametrize(
    ("format", "text"),
    (
        (QWEN_XML, "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"),
        (GLM_XML, "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"),
        (MINIMAX_XML, '<minimax:tool_call><invoke name="f"><parameter name="a">1</parameter></invoke>'
         "</minimax:tool_call>"),
        (DSML, '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a">'
         "1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>"),
    ),
)  # fmt: skip
def test_white_space_may_be_missing(format, text):
    assert read(format, [text]) == ("", [("f", '{"a": 1}')])


def test_the_schema_says_what_is_a_text():
    def value(kind: object, text: str) -> object:
        schemas = {"f": {"properties": {"a": {"type": kind} if kind else {}}}}
        written = f"<tool_call><function=f><parameter=a>\n{text}\n</parameter></function></tool_call>"
        _, _, (call,) = read_in_pieces(AnswerReader(None, XmlCallReader(QWEN_XML, schemas)), [written])
        return json.loads(call[1])["a"]

    assert value("string", "12") == "12" and value("integer", "12") == 12 and value(None, "12") == 12
    assert value("string", "\n x \n") == "\n x \n"
    assert value("boolean", "true") is True and value("object", "{broken") == "{broken"


def test_dsml_says_itself_what_is_a_text():
    def value(kind: str, text: str, says: str) -> object:
        schemas = {"f": {"properties": {"a": {"type": kind}}}}
        argument = (
            f'<｜DSML｜parameter name="a" string="{says}">{text}</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        )
        written = f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n{argument}</｜DSML｜function_calls>'
        _, _, (call,) = read_in_pieces(AnswerReader(None, XmlCallReader(DSML, schemas)), [*written])
        return json.loads(call[1])["a"]

    assert value("string", "12", "true") == "12" and value("string", "12", "false") == 12
    assert value("integer", "12", "true") == "12" and value("integer", "12", "false") == 12
    assert value("string", "\n<b>\n", "true") == "\n<b>\n"


def test_a_template_that_makes_its_elements_of_a_word_shows_dsml():
    """As DeepSeek's template writes: the word is a variable."""
    template = "{% set word = '｜DSML｜' %}{{ '<' + word + 'function_calls>' if tools }}" + TURNS
    assert xml_format_of(template) is DSML


def test_templates_show_the_form():
    assert [xml_format_of(template) for template in TEMPLATES.values()] == list(FORMATS)
    assert xml_format_of(TURNS) is None and xml_format_of("<tool_call>") is None


# ------------------------------------------------------------------------------------------------ grammars


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return folder_tokenizer(speaking_model.write(tmp_path_factory.mktemp("xml")))


@pytest.fixture(scope="module")
def answers(tokenizer):
    grammars = Grammars(tokenizer)
    return lambda template: AnswerFormat(tokenizer, ChatTemplate(template, Path("model")), grammars)


@pytest.mark.parametrize(
    "parameters",
    (
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}},
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
        {"type": "object", "minProperties": 1},
        {"type": "object", "properties": {}, "required": ["a"]},
    ),
)
def test_what_xml_cannot_enforce_is_asked_for_as_json(parameters, answers, tokenizer):
    assert arguments_of(parameters, "tools") is None
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    plan = answers(TEMPLATES[QWEN_XML]).plan(QUESTION, tools=[tool], tool_choice="required")
    assert "You can call these functions" in plan.prompt
    written = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
    assert allowed(plan.new_constraint, tokenizer, written) is None
