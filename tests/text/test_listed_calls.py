"""Calls as a JSON list in an element, as templates like those of Hunyuan and of Nemotron Nano render them."""

from pathlib import Path

import pytest

from airllm.text.answers import AnswerFormat, AnswerReader
from airllm.text.chat_template import ChatTemplate
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.tools.formats import HUNYUAN, NEMOTRON
from airllm.text.tools.reader import ToolCallReader
from tests.support.answers import QUESTION, TOOLS, read_in_pieces
from tests.support.models import speaking_model

CALLS = [("weather", '{"city": "Rome"}'), ("now", "{}")]
MADE = [{"function": {"name": name, "arguments": text}} for name, text in CALLS]
TOLD = [{"role": "assistant", "content": "", "tool_calls": MADE}, {"role": "tool", "content": "5"}]


@pytest.fixture
def answers(tmp_path):
    pytest.importorskip("llguidance")
    tokenizer = folder_tokenizer(speaking_model.write(tmp_path))
    return lambda template: AnswerFormat(tokenizer, ChatTemplate(template, Path("model")))


def test_calls_of_hunyuan_are_rendered_by_its_template_and_read_again(answers):
    """Its template says the form in words and writes the calls of a conversation piece by piece."""
    template = (
        "{% if tools %}Call as <tool_calls>[{...}]</tool_calls>: {{ tools | tojson }}{% endif %}"
        "{% for m in messages %}{% set content = m['content'] if 'content' in m else '' %}"
        "{% if m['role'] == 'tool' %}<tool_response>{{ content }}</tool_response>"
        "{% elif 'tool_calls' in m %}{% set ns = namespace(calls='[') %}{% for c in m['tool_calls'] %}"
        "{% set ns.calls = ns.calls + '{\"name\": \"' + c['function']['name'] + '\", \"arguments\": '"
        " + c['function']['arguments'] | tojson + '}' + (']' if loop.last else ', ') %}{% endfor %}"
        "{{ content + '<tool_calls>' + ns.calls + '</tool_calls>' }}{% else %}{{ content }}{% endif %};"
        "{% endfor %}"
    )
    found = answers(template)
    assert found.tool_format is HUNYUAN
    prompt = found.plan([*QUESTION, *TOLD], tools=TOOLS).prompt
    assert prompt.endswith(f"How are you?;{HUNYUAN.write(CALLS)};<tool_response>5</tool_response>;")
    text = prompt.split(";")[1]
    assert read_in_pieces(AnswerReader(None, ToolCallReader(HUNYUAN)), [*text]) == ("", "", CALLS)


def test_calls_of_nemotron_nano_are_rendered_and_read_and_a_word_turns_thoughts_off(answers):
    """Its template gives tools without their types, joins results, and looks for /no_think in messages."""
    template = (
        "{% set ns = namespace(think=true) %}{% for m in messages %}"
        "{% if m.role in ('user', 'system') and '/no_think' in m.content %}{% set ns.think = false %}"
        "{% endif %}{% endfor %}{% if tools %}<AVAILABLE_TOOLS>["
        "{% for t in tools %}{{ t.function | tojson }}{% endfor %}]</AVAILABLE_TOOLS>"
        "Call as <TOOLCALL>[...]</TOOLCALL>{% endif %}"
        "{% for m in messages %};{% if m.role == 'tool' %}<TOOL_RESPONSE>[{{ m.content }}]</TOOL_RESPONSE>"
        "{% elif m.tool_calls %}<TOOLCALL>[{% for c in m.tool_calls %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
        "{% if not loop.last %}, {% endif %}{% endfor %}]</TOOLCALL>"
        "{% else %}{{ m.content.replace('/no_think', '') }}{% endif %}{% endfor %};"
        "{{ '<think>\n' if ns.think else '<think></think>' }}"
    )
    found = answers(template)
    assert found.tool_format is NEMOTRON
    plan = found.plan([*QUESTION, *TOLD], tools=TOOLS)
    *_, text, _, end = plan.prompt.split(";")
    assert (text, end) == (NEMOTRON.write(CALLS), "<think>\n")
    assert read_in_pieces(plan.new_reader(), [*f"Hm.\n</think>\n\n{text}"]) == ("", "Hm.", CALLS)
    plan = found.plan([{"role": "system", "content": "/no_think"}, *QUESTION], tools=TOOLS)
    assert plan.prompt.endswith(";<think></think>")
    assert read_in_pieces(plan.new_reader(), [*text]) == ("", "", CALLS)
