"""Templates of the form of those of Kimi K2, Kimi K2.5, Mistral Small 4, Falcon-H1 and Command R+: what a
conversation with thoughts, calls and results becomes, and what is read and enforced in answers.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airllm.text.answers import AnswerFormat
from airllm.text.chat_template import ChatTemplate
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.grammar import Grammars
from airllm.text.tools.formats import COMMAND_R, HERMES, KIMI, MISTRAL_ARGS, ToolFormat
from tests.support.answers import QUESTION, TOOLS, read_in_pieces
from tests.support.engines.random_texts import allowed
from tests.support.models import speaking_model

CALLS = [("weather", '{"city": "Rome"}'), ("now", "{}")]
IDS = ("functions.weather:0", "functions.now:1")  # as Kimi numbers calls


@dataclass(frozen=True)
class Maker:
    """`written`: what the template, or airllm for it, makes of a message with a thought and calls, and of
    their results. `off`: values that turn thoughts off, with the end of a prompt then.
    """

    template: str
    format: ToolFormat
    written: str
    end: str
    thoughts: tuple[str, str] = ("", "")
    off: tuple[dict[str, Any], str] = field(default_factory=lambda: ({}, ""))


KIMI_K2 = Maker(  # the first template writes no calls
    "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}"
    "{% for m in messages %}<|im_{{ 'system' if m.role == 'tool' else m.role }}|>{{ m.role }}<|im_middle|>"
    "{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
    KIMI,
    f"assistant<|im_middle|>I look.{KIMI.write(CALLS)}<|im_end|><|im_system|>tool<|im_middle|>5<|im_end|>",
    "<|im_assistant|>assistant<|im_middle|>",
)
KIMI_K25 = Maker(
    "{% if tools %}<|im_system|>tool_declare<|im_middle|>"
    "{{ tools_ts_str or tools | tojson(separators=(',', ':')) }}<|im_end|>{% endif %}"
    "{%- for m in messages %}{% if m.role == 'tool' %}<|im_system|>tool<|im_middle|>"
    "## Return of {{ m.tool_call_id }}\n{{ m.content }}{% else %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>"
    "{% if m.role == 'assistant' %}<think>{{ m.get('reasoning_content', '') }}</think>{% endif %}"
    "{{ m.content or '' }}{% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}"
    "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}"
    "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>"
    "{{ '<think></think>' if thinking is defined and thinking is false else '<think>' }}{% endif %}",
    KIMI,
    f"assistant<|im_middle|><think>Hm.</think>I look.{KIMI.write(CALLS)}<|im_end|>"
    f"<|im_system|>tool<|im_middle|>## Return of {IDS[0]}\n5<|im_end|>",
    "assistant<|im_middle|><think>",
    ("", "</think>"),
    ({"thinking": False}, "<think></think>"),
)
MISTRAL_4 = Maker(  # thoughts are parts of a content; a setting says whether there will be some
    "{%- set effort = reasoning_effort if reasoning_effort is defined else 'none' %}"
    "{%- if effort not in ('none', 'high') %}{{ raise_exception('none or high') }}{% endif %}"
    "{%- macro content(of) %}{% if of is string %}{{ of }}{% else %}{% for p in of or [] %}"
    "{{ '[THINK]' + p.thinking + '[/THINK]' if p.type == 'thinking' else p.text }}"
    "{% endfor %}{% endif %}{% endmacro %}"
    "{{- bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[MODEL_SETTINGS]{\"reasoning_effort\": \"{{ effort }}\"}[/MODEL_SETTINGS]"
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ content(m.content) }}"
    "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"
    "{% endfor %}{{ eos_token }}{% endif %}{% endfor %}",
    MISTRAL_ARGS,
    f"[/INST][THINK]Hm.[/THINK]I look.{MISTRAL_ARGS.write(CALLS)}</s>[TOOL_RESULTS]5[/TOOL_RESULTS]",
    "",
    ("[THINK]", "[/THINK]"),
)  # fmt: skip
FALCON_H1 = Maker(  # it says the form of a call as Python has it, and writes JSON
    "{% if tools %}<|im_start|>system\nYou have functions:\n<tools>{{ tools | tojson }}"
    "</tools>\nFor each call, return <tool_call>\n{'arguments': <args-dict>, 'name': <function-name>}\n"
    "</tool_call><|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>"
    "{{ 'user\n<tool_response>\n' + m.content + '\n</tool_response>' if m.role == 'tool' else"
    " m.role + '\n' + m.content }}{% for c in m.tool_calls %}"
    "{{ '\n<tool_call>\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' }}"
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    HERMES,
    f"assistant\nI look.\n{HERMES.write(CALLS)}<|im_end|>\n"
    "<|im_start|>user\n<tool_response>\n5\n</tool_response>",
    "<|im_start|>assistant\n",
)  # fmt: skip
MAKERS = {"Kimi K2": KIMI_K2, "Kimi K2.5": KIMI_K25, "Mistral Small 4": MISTRAL_4, "Falcon-H1": FALCON_H1}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return folder_tokenizer(speaking_model.write(tmp_path_factory.mktemp("makers")))


@pytest.fixture(scope="module")
def answers(tokenizer):
    pytest.importorskip("llguidance")
    grammars = Grammars(tokenizer)
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    return lambda source: AnswerFormat(tokenizer, ChatTemplate(source, Path("model"), **names), grammars)


@pytest.fixture(params=MAKERS)
def maker(request):
    return MAKERS[request.param]


def history() -> list[dict[str, Any]]:
    made = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, (name, arguments) in zip(IDS, CALLS, strict=True)
    ]
    asked = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": made}
    return [*QUESTION, asked, {"role": "tool", "tool_call_id": IDS[0], "content": "5"}]


def test_a_conversation_with_calls_is_as_the_model_has_learned_it(maker, answers):
    found = answers(maker.template)
    assert found.tool_format is maker.format
    plan = found.plan(history(), tools=TOOLS)
    assert maker.written in plan.prompt and plan.prompt.endswith(maker.end)
    assert '"weather"' in plan.prompt and "You can call" not in plan.prompt


def test_thoughts_and_calls_are_read_and_only_valid_calls_allowed(maker, answers, tokenizer):
    plan = answers(maker.template).plan(QUESTION, tools=TOOLS)
    begin, end = maker.thoughts
    thought = f"{begin}Hm.{end}" if end else ""
    for text in ("No.", "I look." + maker.format.write(CALLS)):
        assert allowed(plan.new_constraint, tokenizer, thought + text) is None
    assert (
        allowed(plan.new_constraint, tokenizer, thought + maker.format.write([("train", "{}")])) is not None
    )
    found = read_in_pieces(plan.new_reader(), [*thought, *maker.format.write(CALLS)])
    assert found == ("", "Hm." if end else "", CALLS)
    required = answers(maker.template).plan(QUESTION, tools=TOOLS, tool_choice="required")
    assert allowed(required.new_constraint, tokenizer, thought + "No.") is not None


def test_written_calls_are_numbered_through_a_conversation(answers):
    """Kimi's ids are names with a number that goes on."""
    prompt = answers(KIMI_K2.template).plan([*history(), *history()], tools=TOOLS).prompt
    assert [prompt.count(f"<|tool_call_begin|>functions.{each}<") for each in
            ("weather:0", "now:1", "weather:2", "now:3")] == [1, 1, 1, 1]  # fmt: skip


def test_thoughts_can_be_turned_off(answers):
    values, end = KIMI_K25.off
    plan = answers(KIMI_K25.template).plan(QUESTION, template_values=values)
    assert plan.prompt.endswith(end) and read_in_pieces(plan.new_reader(), ["Hm."]) == ("Hm.", "", [])
    high = answers(MISTRAL_4.template).plan(QUESTION, template_values={"reasoning_effort": "high"})
    assert high.prompt.startswith('<s>[MODEL_SETTINGS]{"reasoning_effort": "high"}')
    assert '"none"' in answers(MISTRAL_4.template).plan(QUESTION).prompt


# ----------------------------------------------------------------------------------------- Command R+

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TOOL_USE = (
    "{% for t in tools %}def {{ t.function.name }}("
    "{% for name, each in t.function.parameters.properties | items %}{{ name + ': ' + each.description }}"
    "{% endfor %}){% endfor %}{% for m in messages %}"
    "{% if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    "Write 'Action:' and a list like ```json\n[{\"tool_name\": x, \"parameters\": y}]```, or directly-answer"
)  # fmt: skip


@pytest.fixture
def command_r(tokenizer, answers):
    with_tools = ChatTemplate(TOOL_USE, Path("model"))
    return AnswerFormat(
        tokenizer, ChatTemplate(PLAIN, Path("model"), with_tools=with_tools), Grammars(tokenizer)
    )


def test_a_required_call_of_command_r_is_asked_for_by_its_template_for_tools(command_r, tokenizer):
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        plan = command_r.plan(QUESTION, tools=TOOLS, tool_choice=choice)
        assert plan.prompt.startswith("def weather(city: )def now()<user>How are you?Write 'Action:'")
        written = COMMAND_R.write(CALLS[:1])
        assert allowed(plan.new_constraint, tokenizer, written) is None
        assert allowed(plan.new_constraint, tokenizer, "Well") == 0
        assert read_in_pieces(plan.new_reader(), [*written]) == ("", "", CALLS[:1])


def test_calls_and_results_that_the_template_for_tools_drops_are_texts(command_r):
    prompt = command_r.plan(history(), tools=TOOLS, tool_choice="required").prompt
    results = "<user><tool_response>\n5\n</tool_response>Write"
    assert f"<assistant>I look.{COMMAND_R.write(CALLS)}{results}" in prompt


@pytest.mark.parametrize("choice", ("auto", "none"))
def test_where_a_text_may_come_command_r_has_its_other_template(choice, command_r, tokenizer):
    """The one for tools would leave no way to answer."""
    plan = command_r.plan(QUESTION, tools=TOOLS, tool_choice=choice)
    assert "Write 'Action:'" not in plan.prompt
    assert plan.prompt.startswith("<user>" if choice == "none" else "<system>You can call these functions")
    if choice == "auto":
        for text in ("Fine.", HERMES.write(CALLS)):
            assert allowed(plan.new_constraint, tokenizer, text) is None


def test_a_template_for_tools_of_unknown_form_does_not_render_in_place_of_a_known_one(tokenizer, answers):
    known = "{{ tools | tojson if tools }}<tool_call>" + PLAIN
    both = ChatTemplate(known, Path("model"), with_tools=ChatTemplate("{{ tools | tojson }}?", Path("model")))
    plan = AnswerFormat(tokenizer, both, Grammars(tokenizer)).plan(QUESTION, tools=TOOLS)
    assert plan.prompt.endswith("<tool_call><user>How are you?")
