"""Plans of answers: prompts with tools and forms, and grammars that only allow such answers."""

import json
from pathlib import Path

import jsonschema
import pytest
import tokenizers

from airllm.text.answers import AnswerFormat
from airllm.text.chat_template import ChatTemplate, ChatTemplateError
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.grammar import GrammarError, Grammars
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
from tests.support.answers import CITY, FORMATS, QUESTION, TOOLS, TURNS, read_in_pieces
from tests.support.engines.random_texts import allowed, generate
from tests.support.models import speaking_model

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
