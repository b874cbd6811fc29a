"""Answers: thoughts, text and tool calls, whole and in any pieces; grammars that only allow such answers."""

import itertools
import json
from pathlib import Path

import jsonschema
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from airllm.text.answers import AnswerFormat, AnswerReader
from airllm.text.chat_template import ChatTemplate, ChatTemplateError
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.grammar import GrammarError, Grammars
from airllm.text.reasoning import ReasoningReader, ReasoningTags
from airllm.text.tools.formats import (
    COHERE,
    COMMAND_R,
    DEEPSEEK,
    DEEPSEEK_FENCED,
    GRANITE,
    HERMES,
    HUNYUAN,
    KIMI,
    LLAMA,
    MISTRAL_ARGS,
    MISTRAL_LIST,
    NEMOTRON,
    format_of,
)
from airllm.text.tools.reader import ToolCallReader
from tests.support.engines.random_texts import allowed, generate
from tests.support.models import speaking_model

FORMATS = (
    HERMES, MISTRAL_LIST, MISTRAL_ARGS, LLAMA, DEEPSEEK, DEEPSEEK_FENCED, KIMI, COHERE, HUNYUAN, NEMOTRON,
    COMMAND_R, GRANITE,
)  # fmt: skip
THINK = ReasoningTags("<think>", "</think>")
ARGUMENTS = ('{"city": "Rome"}', "{}", '{"a": {"b": "}\\"]{"}, "c": "\\\\"}', '{"x": "</tool_call>"}')
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Now", "parameters": CITY}},
         {"type": "function", "function": {"name": "now", "description": None}}]  # fmt: skip
QUESTION = [{"role": "user", "content": "How are you?"}]
TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
TEMPLATES = {
    HERMES: "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}" + TURNS,
    MISTRAL_LIST: "{% if tools %}{{ tools | tojson }}[TOOL_CALLS]{% endif %}" + TURNS,
    MISTRAL_ARGS: "{% if tools %}{{ tools | tojson }}[TOOL_CALLS]x[ARGS]{% endif %}" + TURNS,
    DEEPSEEK: "{% if tools %}{{ tools | tojson }}<｜tool▁calls▁begin｜>{% endif %}" + TURNS,
    DEEPSEEK_FENCED: "{% if tools %}{{ tools | tojson }}<｜tool▁calls▁begin｜>```json{% endif %}" + TURNS,
    KIMI: "{% if tools %}{{ tools | tojson }}<|tool_calls_section_begin|>{% endif %}" + TURNS,
    COHERE: "{% if tools %}{{ tools | tojson }}<|START_ACTION|>{% endif %}" + TURNS,
    HUNYUAN: "{% if tools %}{{ tools | tojson }}<tool_calls>[{}]</tool_calls>{% endif %}" + TURNS,
    NEMOTRON: "{% if tools %}{{ tools | tojson }}<TOOLCALL>[{}]</TOOLCALL>{% endif %}" + TURNS,
    GRANITE: "{% if tools %}<|start_of_role|>{{ tools | tojson }}Call by <|tool_call|>{% endif %}" + TURNS,
    COMMAND_R: "{% if tools %}{{ tools | tojson }}Write 'Action:' and {\"tool_name\": x}{% endif %}" + TURNS,
    LLAMA: '{% if tools %}{{ tools | tojson }}{"name": x, "parameters": y}<|eot_id|>{% endif %}' + TURNS,
}


def read_in_pieces(reader: AnswerReader, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """The text, the thoughts, and the names and arguments of calls."""
    text = reasoning = ""
    calls: dict[int, tuple[str, str]] = {}
    for i, piece in enumerate(pieces):
        delta = reader.read(piece, i == len(pieces) - 1)
        text, reasoning = text + delta.text, reasoning + delta.reasoning
        for call in delta.calls:
            name, arguments = calls.get(call.index, ("", ""))
            assert (call.id is None) == (call.name is None) == (call.index in calls)
            calls[call.index] = (call.name or name, arguments + call.arguments)
    assert reader.calls == len(calls)
    return text, reasoning, [calls[i] for i in range(len(calls))]


def cuts(text: str, places: list[int]) -> list[str]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(ends)]


# ------------------------------------------------------------------------------------------------ calls


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_calls_that_a_format_writes_are_read(format):
    calls = [("weather", ARGUMENTS[0]), ("f_2-x", ARGUMENTS[2]), ("now", "{}")]
    calls = calls if format.between is not None else calls[1:2]
    before = "Let me see.\n\n" if format.trigger else ""
    reader = AnswerReader(None, ToolCallReader(format))
    found = read_in_pieces(reader, [before + format.write(calls) + "\n"])
    assert found == (before.strip(), "", calls)


@pytest.mark.parametrize(
    ("format", "text"),
    (
        (HERMES, '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'),
        (HERMES, '<tool_call>\n\n{ "name" : "f", "arguments" :\n{"a":1} }\n</tool_call>\n\n'),
        (MISTRAL_LIST, '[TOOL_CALLS] [{"name": "f", "arguments": {"a":1}, "id": "abc123def"}]'),
        (MISTRAL_ARGS, '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a":1}'),
        (HUNYUAN, '<tool_calls>\n[{"name":"f","arguments":{"a":1}}]\n</tool_calls>'),
        (NEMOTRON, '<TOOLCALL>[ {"name": "f", "arguments": {"a":1}}\n]</TOOLCALL>\n'),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"a":1}}'),
        (LLAMA, '\n{"name": "f", "arguments": {"a":1}}'),
        (COHERE, '<|START_ACTION|>[{"tool_name":"f","parameters":{"a":1}}]<|END_ACTION|>'),
        (
            COHERE,
            '<|START_ACTION|>[\n    {"tool_call_id": "12", "tool_name": "f", "parameters": {"a":1}}\n]'
            "<|END_ACTION|>",
        ),
        (
            DEEPSEEK,
            '<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>f<｜tool▁sep｜> {"a":1}<｜tool▁call▁end｜>\n'
            "<｜tool▁calls▁end｜>",
        ),
        (
            DEEPSEEK_FENCED,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜> f\n```json\n"
            '{"a":1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ),
        (
            KIMI,
            '<|tool_calls_section_begin|> <|tool_call_begin|> f:12 <|tool_call_argument_begin|>\n{"a":1}\n'
            "<|tool_call_end|>\n<|tool_calls_section_end|>",
        ),
    ),
)
def test_calls_in_other_hands(format, text):
    assert read_in_pieces(AnswerReader(None, ToolCallReader(format)), [text]) == ("", "", [("f", '{"a":1}')])


@pytest.mark.parametrize(
    "text",
    ("<tool_call>\nnothing", "a <tool_call", "<tool_call>",
     '<tool_call>{"name": "f", "arguments": 1}</tool_call>',
     '<tool_call>{"name": "f"', "  white  ", "", "<tool_call>" + "x" * 400, "[TOOL_CALLS]", '{"name": "f"}'),
)  # fmt: skip
def test_what_is_no_call_is_text(text):
    assert read_in_pieces(AnswerReader(None, ToolCallReader(HERMES)), [text]) == (text, "", [])
    assert read_in_pieces(AnswerReader(None, ToolCallReader(LLAMA)), [text]) == (text, "", [])


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_call_that_is_cut_off_keeps_what_it_has(format):
    """From its arguments on it is a call, and its arguments are a beginning of the whole."""
    whole = format.write([("weather", ARGUMENTS[2])])
    for end in range(len(whole)):
        text, _, calls = read_in_pieces(AnswerReader(None, ToolCallReader(format)), [whole[:end]])
        if calls:
            assert text == "" and calls[0][0] == "weather" and ARGUMENTS[2].startswith(calls[0][1])
        else:
            assert text == whole[:end] and end <= whole.index(ARGUMENTS[2])


FRAGMENTS = st.sampled_from([
    "<tool_call>", "\n", " ", "</tool_call>", "<tool_calls>",
    "]</tool_calls>", '{"name": "f", "arguments": ', '{"name": "f", "parameters": ',
    "{", "}", '{"a": "x}"}', '"', "\\", "text", "[TOOL_CALLS]", "[", "]", ", ", "f[ARGS]",
    "<think>", "</think>", "<",
    "<|python_tag|>", "x" * 300, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    '<|START_ACTION|>[{"tool_name": "f", "parameters": ', "}]<|END_ACTION|>", "<|END_ACTION|>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", "<|tool_call_end|>",
])  # fmt: skip


@given(
    parts=st.lists(FRAGMENTS, max_size=12),
    places=st.lists(st.integers(0, 3000), max_size=12),
    format=st.sampled_from(FORMATS),
    thinking=st.sampled_from([None, False, True]),
)
def test_pieces_make_no_difference(parts, places, format, thinking):
    text = "".join(parts)

    def read(pieces):
        thoughts = None if thinking is None else ReasoningReader(THINK, thinking)
        return read_in_pieces(AnswerReader(thoughts, ToolCallReader(format)), pieces)

    whole = read([text])
    assert read(cuts(text, places)) == whole
    assert read([*text, ""]) == whole


def test_text_is_passed_on_as_soon_as_it_is_no_call():
    reader = AnswerReader(None, ToolCallReader(HERMES))
    assert [reader.read(piece).text for piece in ("Hi ", "you <b", "> <too", "l> x")] == [
        "Hi",
        " you <b",
        ">",
        " <tool> x",
    ]


def test_arguments_are_passed_on_as_they_come():
    reader = AnswerReader(None, ToolCallReader(HERMES, lambda: "call_1"))
    pieces = ('<tool_call>\n{"name": "f", "arguments": {', '"a": ', "1}", "}\n</tool_call>")
    deltas = [reader.read(piece).calls for piece in pieces]
    assert [[(call.id, call.name, call.arguments) for call in each] for each in deltas] == [
        [("call_1", "f", ""), (None, None, "{")], [(None, None, '"a": ')], [(None, None, "1}")], [],
    ]  # fmt: skip


def test_ids_differ_and_suit_their_templates():
    ids = {format.new_id() for format in FORMATS for _ in range(50)}
    assert len(ids) == 50 * len(FORMATS)
    assert all(len(MISTRAL_LIST.new_id()) == 9 and MISTRAL_LIST.new_id().isalnum() for _ in range(20))


def test_calls_that_say_their_ids_keep_them():
    reader = ToolCallReader(KIMI)
    _, deltas = reader.read(KIMI.write([("f", "{}"), ("g-h", "{}")]), is_last=True)
    assert [each.id for each in deltas if each.id] == ["functions.f:0", "functions.g-h:1"]


# ------------------------------------------------------------------------------------------------ thoughts


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    (
        ("<think>\nhm\n</think>\n\nYes", False, ("Yes", "hm")),
        ("hm\n</think>\n\nYes", True, ("Yes", "hm")),
        ("\n <think>a\n\nb</think> x</think>", False, ("x</think>", "a\n\nb")),
        ("Yes <think>no</think>", False, ("Yes <think>no</think>", "")),
        ("<think>cut off </thi", False, ("", "cut off </thi")),
        ("<thin", False, ("<thin", "")),
        ("  Yes", False, ("  Yes", "")),
        ("<think></think>Yes", False, ("Yes", "")),
    ),
)
def test_thoughts(text, thinking, expected):
    for pieces in ([text], [*text, ""]):
        reader = AnswerReader(ReasoningReader(THINK, thinking))
        assert read_in_pieces(reader, pieces)[:2] == expected


# ------------------------------------------------------------------------------------------------ plans


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return folder_tokenizer(speaking_model.write(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def grammars(tokenizer):
    pytest.importorskip("llguidance")
    return Grammars(tokenizer)


@pytest.fixture
def answers(tokenizer, grammars):
    return lambda template: AnswerFormat(tokenizer, ChatTemplate(template, Path("model")), grammars)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("parallel", (True, False))
@pytest.mark.parametrize("choice", ("required", {"type": "function", "function": {"name": "weather"}}))
def test_required_calls_are_valid(format, parallel, choice, answers, tokenizer):
    found = answers(TEMPLATES[format])
    assert found.tool_format is format
    plan = found.plan(QUESTION, tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel)
    for seed in range(6):
        text, _, calls = read_in_pieces(
            plan.new_reader(), [generate(plan.new_constraint, tokenizer, seed, 1600)]
        )
        assert calls and text == ""
        assert len(calls) == 1 or (parallel and format.between is not None)
        for name, arguments in calls:
            assert name == "weather" or choice == "required"
            jsonschema.validate(json.loads(arguments), CITY if name == "weather" else {"maxProperties": 0})


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_auto_allows_text_or_valid_calls(format, answers, tokenizer):
    plan = answers(TEMPLATES[format]).plan(QUESTION, tools=TOOLS)
    before = "I look. " if format.trigger else ""
    good, wrong = ('{"city": "Rome"}', '{"town": "Rome"}')
    assert allowed(plan.new_constraint, tokenizer, "No <b>tool</b> [needed] {}.") is None
    assert allowed(plan.new_constraint, tokenizer, before + format.write([("weather", good)])) is None
    assert allowed(plan.new_constraint, tokenizer, before + format.write([("weather", wrong)])) is not None
    assert allowed(plan.new_constraint, tokenizer, before + format.write([("train", "{}")])) is not None
    twice = format.write([("weather", good), ("now", "{}")])
    assert (allowed(plan.new_constraint, tokenizer, twice) is None) == (format.between is not None)
    single = answers(TEMPLATES[format]).plan(QUESTION, tools=TOOLS, parallel_tool_calls=False)
    assert allowed(single.new_constraint, tokenizer, twice) is not None


def test_no_tools_and_no_format_restrict_nothing(answers):
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"response_format": {"type": "text"}}):
        plan = answers(TEMPLATES[HERMES]).plan(QUESTION, **options)
        assert plan.new_constraint is None and "weather" not in plan.prompt
        assert plan.new_reader().read("<tool_call>x", True).text == "<tool_call>x"


def test_the_template_gets_the_tools_and_the_arguments_as_objects(answers):
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"a": [1]}'}}
    history = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "5"},
    ]
    template = (
        "{{ tools | tojson }}<tool_call>{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"
    )
    prompt = answers(template).plan(history, tools=TOOLS).prompt
    assert '"name": "weather"' in prompt and '"description": ""' in prompt
    assert prompt.endswith('user:How are you?;assistant:{"a": [1]};tool:5;')


def test_a_call_in_the_history_that_was_cut_off_is_no_error(answers):
    call = {"function": {"name": "now", "arguments": '{"a": '}}
    history = [*QUESTION, {"role": "assistant", "tool_calls": [call]}]
    assert answers(TEMPLATES[HERMES]).plan(history).prompt.startswith("<user>How are you?")
    assert '{"a": ' in answers(TURNS).plan(history).prompt


def test_a_template_without_tools_gets_a_description(answers, tokenizer):
    call = {"function": {"name": "now", "arguments": "{}"}}
    told = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "five"}]
    history = [{"role": "system", "content": "Be kind."}, *QUESTION, *told]
    plan = answers(TURNS).plan(history, tools=TOOLS, tool_choice="required")
    assert plan.prompt.startswith("<system>Be kind.\n\nYou can call these functions:")
    assert '"name": "weather"' in plan.prompt
    assert '<assistant><tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>' in plan.prompt
    assert "<user><tool_response>\nfive\n</tool_response>" in plan.prompt
    assert allowed(plan.new_constraint, tokenizer, HERMES.write([("now", "{}")])) is None


def test_control_tokens_of_calls_are_shown_and_required(answers, grammars, tokenizer):
    """Here `<|im_start|>` stands for a vocabulary's control token that begins a call."""
    template = TEMPLATES[HERMES] + "{# <think> </think> #}"
    plan = answers(template).plan(QUESTION, tools=TOOLS)
    assert plan.shown_tokens == frozenset()
    begin = tokenizer.id_of(speaking_model.BEGIN)
    new = grammars.lark(f'start: "a" <[{begin}]> "b"')
    assert allowed(new, tokenizer, f"a{speaking_model.BEGIN}b", special=True) is None
    assert allowed(new, tokenizer, f"a{speaking_model.BEGIN}b") == 1  # spelled out, it is another text


def test_tokens_around_a_text_may_come_and_are_not_shown(tmp_path):
    pytest.importorskip("llguidance")
    path = speaking_model.write(tmp_path / "model") / "tokenizer.json"
    whole = tokenizers.Tokenizer.from_file(str(path))
    markers = [*COHERE.around_text, "<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>"]
    whole.add_special_tokens([*markers, "<|END_THINKING|>"])
    whole.save(str(path))
    tokenizer = folder_tokenizer(path.parent)
    template = TEMPLATES[COHERE] + "{# <|START_THINKING|> <|END_THINKING|> #}"
    plan = AnswerFormat(tokenizer, ChatTemplate(template, Path("model"))).plan(QUESTION, tools=TOOLS)
    call = COHERE.write([("now", "{}")])
    thought = "<|START_THINKING|>hm<|END_THINKING|>"
    for text in ("<|START_RESPONSE|>Hi<|END_RESPONSE|>", "Hi", call, thought + call, thought + "Hi"):
        assert allowed(plan.new_constraint, tokenizer, text, special=True) is None, text
    assert allowed(plan.new_constraint, tokenizer, "<|END_ACTION|>", special=True) == 0
    hidden = {tokenizer.id_of(marker) for marker in COHERE.around_text}
    assert None not in hidden and not hidden & plan.shown_tokens and len(plan.shown_tokens) == 4
    found = read_in_pieces(plan.new_reader(), [thought + call])
    assert found == ("", "hm", [("now", "{}")])


@pytest.mark.parametrize("kind", ("json_object", "json_schema"))
def test_response_formats(kind, answers, tokenizer):
    format = {"type": kind, "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    plan = answers(TURNS).plan(QUESTION, response_format=format)
    for seed in range(4):
        text = generate(plan.new_constraint, tokenizer, seed, 400)
        if text is not None:
            jsonschema.validate(json.loads(text), CITY if kind == "json_schema" else {"type": "object"})
            assert plan.new_reader().read(text, True).text == text


def test_a_response_format_with_tools_allows_either(answers, tokenizer):
    format = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    new = answers(TEMPLATES[HERMES]).plan(QUESTION, tools=TOOLS, response_format=format).new_constraint
    assert allowed(new, tokenizer, '{"city": "Rome"}') is None
    assert allowed(new, tokenizer, HERMES.write([("now", "{}")])) is None
    assert allowed(new, tokenizer, "Rome") == 0


@pytest.mark.parametrize(
    ("prompt", "good", "wrong"),
    (
        ("", ["<think>\nhm\n</think>\n\n{}", "\n<think>hm</think>{}", "{}"], ["hm</think>{}", "<think>{}"]),
        ("<think>\n", ["hm</think>\n\n{}", "</think>{}"], ["{}", "<think>"]),
        ("<think>\n\n</think>\n\n", ["{}"], ["<think>hm</think>{}"]),
    ),
)  # fmt: skip
def test_thoughts_come_before_json(prompt, good, wrong, answers, tokenizer):
    template = TURNS + f"{{{{ {prompt!r} }}}}{{# <think> </think> #}}"
    plan = answers(template).plan(QUESTION, response_format={"type": "json_object"})
    for text in good:
        assert allowed(plan.new_constraint, tokenizer, text) is None, text
        assert plan.new_reader().read(text, True).text == "{}"
    for text in wrong:
        assert allowed(plan.new_constraint, tokenizer, text) is not None, text


@pytest.mark.parametrize("markers", ([], ["<think>", "</think>"]), ids=("as text", "as control tokens"))
def test_white_space_may_come_before_thoughts(markers, tmp_path):
    """GLM 4.5 begins its answers with a line end, then thinks."""
    pytest.importorskip("llguidance")
    path = speaking_model.write(tmp_path / "model") / "tokenizer.json"
    whole = tokenizers.Tokenizer.from_file(str(path))
    whole.add_special_tokens(markers)
    whole.save(str(path))
    tokenizer = folder_tokenizer(path.parent)
    template = TEMPLATES[HERMES] + "{# <think> </think> #}"
    plan = AnswerFormat(tokenizer, ChatTemplate(template, Path("model"))).plan(QUESTION, tools=TOOLS)
    call = HERMES.write([("now", "{}")])
    for text in ("\n<think>hm</think>", "<think>\nhm\n</think>\n\n", "\n", ""):
        for rest in (call, "Hi", "I look. " + call):
            assert allowed(plan.new_constraint, tokenizer, text + rest, special=True) is None, text + rest
    assert read_in_pieces(plan.new_reader(), [*f"\n<think>hm</think>\n{call}"]) == ("", "hm", [("now", "{}")])


@pytest.mark.parametrize(
    ("options", "parameter", "message"),
    (
        ({"tools": {}}, "tools", "expected a list of tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "expected {"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "expected an object with a name"),
        (
            {"tools": [{"function": {"name": "a b"}}]},
            "tools[0].function.name",
            "found 'a b', expected 1 to 64",
        ),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools[2].function.name", "found 'weather' twice"),
        (
            {"tools": [{"function": {"name": "f", "description": 1}}]},
            "tools[0].function.description",
            "a text",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": 1}}]},
            "tools[0].function.parameters",
            "a JSON schema",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}}]},
            "tools[0].function.parameters",
            "an unsupported keyword at /properties/a/not",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters",
            "found the type 'string', expected \"object\"",
        ),
        ({"tool_choice": "required"}, "tool_choice", "without tools"),
        ({"tool_choice": "any"}, "tool_choice", 'expected "none", "auto", "required"'),
        (
            {"tools": TOOLS, "tool_choice": {"function": {"name": "no"}}},
            "tool_choice",
            "found the function 'no', expected one of weather, now",
        ),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            'found \'xml\', expected "text", "json_',
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "a name and a schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format.json_schema.schema",
            "an unsupported keyword at /not",
        ),
    ),
)
def test_wrong_options_name_their_place(options, parameter, message, answers):
    with pytest.raises(GrammarError) as found:
        answers(TEMPLATES[HERMES]).plan(QUESTION, **options)
    assert found.value.parameter == parameter
    assert str(found.value).startswith(f"{parameter} has an ") and message in str(found.value)


def test_a_tool_that_is_not_strict_takes_any_object(answers, tokenizer):
    parameters = {"type": "object", "not": {}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": False}}
    plan = answers(TEMPLATES[HERMES]).plan(QUESTION, tools=[tool], tool_choice="required")
    assert '"not"' in plan.prompt
    assert allowed(plan.new_constraint, tokenizer, HERMES.write([("f", '{"a": [1]}')])) is None


def test_a_template_that_refuses_the_messages_says_so(answers):
    with pytest.raises(ChatTemplateError, match="no tools please"):
        answers("{{ raise_exception('no tools please') }}").plan(QUESTION)


def test_templates_show_the_form_of_calls():
    assert [format_of(template) for template in TEMPLATES.values()] == list(TEMPLATES)
    assert format_of("<tool_call>\n<function=x>\n<parameter=y>") is None
    assert format_of("<tool_call>x\n<arg_key>y</arg_key>") is None
    assert format_of('{"name": x, "parameters": y}<|eot|>') is LLAMA  # of Llama 4
    assert format_of(TURNS) is None
