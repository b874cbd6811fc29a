"""Calls in forms of their own, XML, Gemma 4's and LFM2's: they are read as JSON in any pieces, grammars allow
only valid ones, and the templates that show them get the tools.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airllm.text.answers import AnswerFormat, AnswerReader
from airllm.text.chat_template import ChatTemplate
from airllm.text.grammar import Grammars
from tests.support.answers import QUESTION, cuts, read_in_pieces
from tests.support.engines import random_texts
from tests.support.engines.random_texts import generate
from tests.text import test_bare_calls as bare
from tests.text import test_python_calls as python
from tests.text import test_xml_calls as xml


@dataclass(frozen=True)
class Form:
    """`enforced`: the calls as a model may write them: without a marker in a text. `wrong`: replacements in
    them that no grammar allows. `told`: what the prompt has of the tools. `unit`: the schema of a tool whose
    calls are generated.
    """

    template: str
    tools: list[dict[str, Any]]
    new_reader: Callable[[], Any]
    written: str
    calls: list[tuple[str, Any]]
    enforced: str
    also: tuple[str, ...]
    wrong: tuple[tuple[str, str], ...]
    told: str
    unit: dict[str, Any]
    no_calls: tuple[str, ...]
    markers: tuple[str, ...] = ()


def unit(unit: Any, now: Any, at: Any) -> dict[str, Any]:
    """A schema of three properties, one of them required."""
    return {"type": "object", "properties": {"unit": unit, "now": now, "at": at}, "required": ["now"]}


CF, LIST = {"type": "string", "enum": ["C", "F"]}, {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}
WHOLE = {"type": "array", "items": {"type": "integer", "enum": [1, 2]}}
FORMS = {
    format.name: Form(
        xml.TEMPLATES[format], xml.TOOLS, lambda format=format: xml.XmlCallReader(format, xml.SCHEMAS),
        written, xml.CALLS, written, ("No <b>tool</b>.",),
        (("weather", "train"), ("3", '"x"'), ("days", "hours")), '"name": "weather"',
        unit(CF, {"type": "boolean"}, LIST), xml.NO_CALLS.get(format, ()),
    )
    for format, written in xml.WRITTEN.items()
}  # fmt: skip
FORMS["gemma4"] = Form(
    bare.TEMPLATE, bare.TOOLS, lambda: bare.BareCallReader(bare.GEMMA), bare.written(*bare.CALLS), bare.CALLS,
    bare.written(*bare.CALLS), ("No <b>tool</b>.", bare.written(bare.CALLS[2])), bare.WRONG,
    "<|tool>weather<tool|>", unit(CF, {"type": "boolean"}, WHOLE), bare.NO_CALLS, bare.MARKERS,
)  # fmt: skip
FORMS["lfm2"] = Form(
    python.DROPPING, python.TOOLS, lambda: python.PythonCallReader(python.LFM2), python.WRITTEN, python.CALLS,
    python.ENFORCED, ("No [tool](url).", python.as_written(python.CALLS[1:]), python.OTHER), python.WRONG,
    '<|tool_list_start|>[{"type"',
    unit({"type": ["string", "null"]}, {"type": "boolean", "enum": [True]}, WHOLE), python.NO_CALLS,
    (python.BEGIN, python.END),
)  # fmt: skip
WITH_MARKERS = [
    (form, markers) for form, each in FORMS.items() for markers in dict.fromkeys(((), each.markers))
]


def read(form: Form, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    text, _, calls = read_in_pieces(AnswerReader(None, form.new_reader()), pieces)
    return text, calls


def as_objects(calls: list[tuple[str, str]]) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def test_calls_are_read_in_any_pieces(form):
    whole = f"Let me see.\n\n{form.written}\n"
    text, calls = read(form, [whole])
    assert (text, as_objects(calls)) == ("Let me see.", form.calls)
    assert read(form, [*whole, ""]) == (text, calls)
    for at in range(1, len(whole), 7):
        assert read(form, cuts(whole, [at, 2 * at, at * at])) == (text, calls)


def test_calls_that_are_cut_off_have_a_beginning_of_the_arguments(form):
    _, all_calls = read(form, [form.written])
    for end in range(len(form.written)):
        text, calls = read(form, [form.written[:end]])
        if not calls:
            assert text == form.written[:end]
        assert len(calls) <= len(all_calls)
        for (name, begun), (full_name, full) in zip(calls, all_calls, strict=False):
            assert name == full_name and full.startswith(begun)


@pytest.mark.parametrize(
    ("form", "text"), [(each, text) for each in FORMS.values() for text in each.no_calls]
)
def test_what_is_no_call_is_text(form, text):
    assert read(form, [text]) == (text, [])


# ------------------------------------------------------------------------------------------------ grammars


@pytest.fixture(
    scope="module", params=WITH_MARKERS, ids=lambda each: f"{each[0]}-{len(each[1])} control tokens"
)
def planned(request, tmp_path_factory):
    """A form, a tokenizer that has its markers as control tokens or not, and the form's answers."""
    pytest.importorskip("llguidance")
    form = FORMS[request.param[0]]
    tokenizer = bare.tokenizer_with(tmp_path_factory.mktemp("own"), request.param[1])
    template = ChatTemplate(form.template, Path("model"))
    return form, tokenizer, AnswerFormat(tokenizer, template, Grammars(tokenizer))


def allowed(new, tokenizer, text: str) -> int | None:
    return random_texts.allowed(new, tokenizer, text, special=True)


def test_the_template_gets_the_tools_and_only_valid_calls_are_allowed(planned):
    form, tokenizer, answers = planned
    plan = answers.plan(QUESTION, tools=form.tools)
    assert form.told in plan.prompt and "You can call" not in plan.prompt
    for text in (form.enforced, f"Let me see.\n{form.enforced}", *form.also):
        assert allowed(plan.new_constraint, tokenizer, text) is None, text
    for old, new in form.wrong:
        assert old in form.enforced
        assert allowed(plan.new_constraint, tokenizer, form.enforced.replace(old, new)) is not None, new
    single = answers.plan(QUESTION, tools=form.tools, parallel_tool_calls=False)
    assert allowed(single.new_constraint, tokenizer, form.enforced) is not None
    found = read_in_pieces(plan.new_reader(), [form.enforced])
    assert (found[0], as_objects(found[2])) == ("", as_objects(read(form, [form.enforced])[1]))
    assert [name for name, _ in found[2]] == [name for name, _ in form.calls]


@pytest.mark.parametrize("choice", ("required", {"type": "function", "function": {"name": "unit"}}), ids=str)
def test_required_calls_are_valid(choice, planned):
    form, tokenizer, answers = planned
    tool = {"type": "function", "function": {"name": "unit", "parameters": form.unit}}
    tools = [tool] if choice == "required" else [tool, *form.tools]
    plan = answers.plan(QUESTION, tools=tools, tool_choice=choice, parallel_tool_calls=False)
    assert allowed(plan.new_constraint, tokenizer, "No.") == 0
    found = 0
    for seed in range(12):
        if text := generate(plan.new_constraint, tokenizer, seed, 400):
            left, _, ((name, arguments),) = read_in_pieces(plan.new_reader(), [text])
            assert (left, name) == ("", "unit")
            jsonschema.validate(json.loads(arguments), form.unit)
            found += 1
    assert found
