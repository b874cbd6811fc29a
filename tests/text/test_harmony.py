"""Answers in channels, as gpt-oss writes them: whole and in any pieces, and grammars that only allow them."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from airllm.text.answers import AnswerFormat
from airllm.text.chat_template import ChatTemplate
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.grammar import Grammars
from airllm.text.harmony import MARKERS, HarmonyReader
from airllm.text.tools.formats import HARMONY
from tests.support.engines.random_texts import allowed
from tests.support.models import speaking_model

THOUGHTS = "<|channel|>analysis<|message|>The user asks.\n<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Fine, thanks."
CALL = (
    "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Rome"}'
)
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|>"
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Now", "parameters": CITY}}]
QUESTION = [{"role": "user", "content": "How are you?"}]
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} to=functions.{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "<|start|>assistant{# <|channel|> #}"
)

# As gpt-oss' own template: tools in TypeScript, the recipient in parts, and thoughts in a key of its own,
# which may not stand beside a text.
TYPESCRIPT = (
    "{% if tools %}<|start|>developer<|message|>namespace functions {\n{% for tool in tools %}"
    "{{ '// ' + tool.function.description + '\n' + 'type ' + tool.function.name + ' = (_: {' }}"
    "{% for name, each in tool.function.parameters.properties.items() %}{{ name + ': ' + each.type + ',' }}"
    "{% endfor %}}) => any;\n{% endfor %}} // namespace functions<|end|>{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}{% set call = m.tool_calls[0].function %}"
    "{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>"
    "{{ '<|start|>assistant to=' }}\n    {{- 'functions.' + call.name }}<|channel|>commentary json<|message|>"
    "{{ call.arguments | tojson }}<|call|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>"
    "{% endif %}{% endfor %}<|start|>assistant"
)


def read(pieces):
    """The text, the thoughts, and the names and arguments of calls."""
    reader, text, reasoning, calls = HarmonyReader(lambda: "call_1"), "", "", []
    for i, piece in enumerate(pieces):
        delta = reader.read(piece, i == len(pieces) - 1)
        text, reasoning = text + delta.text, reasoning + delta.reasoning
        for call in delta.calls:
            if call.name:
                assert call.id == "call_1" and call.index == len(calls)
                calls.append([call.name, ""])
            calls[call.index][1] += call.arguments
    assert reader.calls == len(calls)
    return text, reasoning, calls


ANSWERS = {
    THOUGHTS + FINAL: ("Fine, thanks.", "The user asks.\n", []),
    THOUGHTS + FINAL + "<|return|>": ("Fine, thanks.", "The user asks.\n", []),
    FINAL.removeprefix("<|start|>assistant"): ("Fine, thanks.", "", []),
    THOUGHTS + CALL + "<|call|>": ("", "The user asks.\n", [["weather", '{"city": "Rome"}']]),
    THOUGHTS + CALL: ("", "The user asks.\n", [["weather", '{"city": "Rome"}']]),
    " to=functions.now<|channel|>commentary json<|message|>{}<|call|>": ("", "", [["now", "{}"]]),
    PREAMBLE + CALL: ("I look.", "", [["weather", '{"city": "Rome"}']]),
    PREAMBLE + FINAL: ("I look.\n\nFine, thanks.", "", []),
    THOUGHTS + "<|start|>assistant" + THOUGHTS: ("", "The user asks.\n\n\nThe user asks.\n", []),
    "<|channel|>analysis to=python code<|message|>1 + 1<|call|>": ("", "1 + 1", []),
    "Just text <| and more": ("Just text <| and more", "", []),
    "<|channel|>analysis<|message|>Cut o": ("", "Cut o", []),
    "<|channel|>anal": ("", "", []),
    "": ("", "", []),
}  # fmt: skip


@pytest.mark.parametrize("text", ANSWERS)
def test_channels_are_read(text):
    assert read([text]) == ANSWERS[text]
    assert read(list(text) or [""]) == ANSWERS[text]


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 200), max_size=4))
def test_pieces_do_not_matter(text, places):
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    assert read([text[a:b] for a, b in itertools.pairwise(ends)]) == ANSWERS[text]


# ------------------------------------------------------------------------------------------------ grammars


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = speaking_model.write(tmp_path_factory.mktemp("model"))
    made = speaking_model.tokenizer()
    made.add_special_tokens([AddedToken(text, special=True) for text in MARKERS])
    made.save(str(folder / "tokenizer.json"))
    return folder_tokenizer(folder)


@pytest.fixture(scope="module")
def answers(tokenizer):
    pytest.importorskip("llguidance")
    return AnswerFormat(tokenizer, ChatTemplate(TEMPLATE, Path("model")), Grammars(tokenizer))


def follows(plan, tokenizer, text):
    return allowed(plan.new_constraint, tokenizer, text, special=True) is None


def test_calls_that_are_required_are_the_whole_answer(answers, tokenizer):
    plan = answers.plan(QUESTION, tools=TOOLS, tool_choice="required")
    assert plan.shown_tokens == {tokenizer.id_of(marker) for marker in MARKERS}
    assert follows(plan, tokenizer, THOUGHTS + CALL)
    assert not follows(plan, tokenizer, THOUGHTS + FINAL)
    assert not follows(plan, tokenizer, THOUGHTS + CALL.replace("city", "town"))
    assert not follows(plan, tokenizer, THOUGHTS + CALL.replace("weather", "train"))
    assert plan.new_reader().read(THOUGHTS + CALL, True).calls[0].name == "weather"


def test_tools_allow_text_or_calls(answers, tokenizer):
    plan = answers.plan(QUESTION, tools=TOOLS)
    for answer in (FINAL, CALL):
        assert follows(plan, tokenizer, THOUGHTS + answer)
        assert follows(plan, tokenizer, answer.removeprefix("<|start|>assistant"))
    assert answers.plan(QUESTION).new_constraint is None


@pytest.fixture(scope="module")
def in_typescript(tokenizer):
    pytest.importorskip("llguidance")
    return AnswerFormat(tokenizer, ChatTemplate(TYPESCRIPT, Path("model")), Grammars(tokenizer))


def test_a_template_that_describes_tools_in_typescript_gets_the_tools(in_typescript, tokenizer):
    plan = in_typescript.plan(QUESTION, tools=TOOLS)
    assert in_typescript.tool_format is HARMONY and "type weather = (_: {city: string,})" in plan.prompt
    assert "You can call these functions" not in plan.prompt
    other = CALL.replace(
        "<|channel|>commentary to=functions.weather <|constrain|>",
        " to=functions.weather<|channel|>commentary ",
    )
    for call in (CALL, other):
        assert follows(plan, tokenizer, THOUGHTS + call)
        assert follows(plan, tokenizer, call.removeprefix("<|start|>assistant"))
        assert not follows(plan, tokenizer, THOUGHTS + call.replace("weather", "train"))
        assert plan.new_reader().read(THOUGHTS + call, True).calls[0].name == "weather"


@pytest.mark.parametrize(
    ("text", "thought"), (("", "Rain?"), (None, "Rain?"), ("I look.", "Rain?\n\nI look."))
)
def test_thoughts_before_a_call_are_in_the_history(text, thought, in_typescript):
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    told = {"role": "assistant", "content": text, "reasoning_content": "Rain?", "tool_calls": [call]}
    prompt = in_typescript.plan([*QUESTION, told, {"role": "tool", "content": "5"}], tools=TOOLS).prompt
    assert (
        f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant to=functions.weather<|" in prompt
    )
    assert '<|message|>{"city": "Rome"}<|call|><|start|>tool<|message|>5<|end|>' in prompt


def test_a_response_format_is_that_of_the_final_message(answers, tokenizer):
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    plan = answers.plan(QUESTION, response_format=schema)
    final = FINAL.replace("Fine, thanks.", '{"city": "Rome"}')
    assert follows(plan, tokenizer, THOUGHTS + final)
    assert not follows(plan, tokenizer, THOUGHTS + FINAL)
    delta = plan.new_reader().read(THOUGHTS + final, True)
    assert (delta.text, delta.reasoning) == ('{"city": "Rome"}', "The user asks.\n")


def test_a_template_whose_markers_are_no_tokens_is_read_as_text(tmp_path):
    pytest.importorskip("llguidance")
    plain = folder_tokenizer(speaking_model.write(tmp_path))
    plan = AnswerFormat(plain, ChatTemplate(TEMPLATE, Path("model")), Grammars(plain)).plan(QUESTION)
    assert plan.new_reader().read(FINAL, True).text == FINAL
    asked = AnswerFormat(plain, ChatTemplate(TYPESCRIPT, Path("model")), Grammars(plain))
    assert "You can call these functions" in asked.plan(QUESTION, tools=TOOLS).prompt
