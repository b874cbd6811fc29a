"""What templates support is found, and they get messages in that form: thoughts, arguments, the template for
tools.
"""

import json
from pathlib import Path

import gguf
import pytest

from airllm.convert.folder_to_gguf import _template_keys
from airllm.text.answers import AnswerFormat
from airllm.text.chat_template import (
    ChatTemplate,
    ChatTemplateError,
    folder_chat_template,
    open_chat_template,
)
from airllm.text.folder_tokenizer import folder_tokenizer
from airllm.text.grammar import Grammars
from tests.support.answers import TOOLS, TURNS
from tests.support.models import speaking_model

HERE = Path("model.gguf")
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": {"a": "é"}}}
QUESTION = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
CALLING = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]}


def answered(source: str, *messages: dict) -> str:
    return ChatTemplate(source, HERE).render([QUESTION, *messages], add_generation_prompt=False)


def thinking(key: str) -> str:
    """A template that reads thoughts from this key, such as LFM2.5's (thinking) and Solar's (reasoning)."""
    thoughts = f"{{% if m.{key} %}}<think>{{{{ m.{key} }}}}</think>{{% endif %}}"
    return f"{{% for m in messages %}}{thoughts}{{{{ m.content }}}}{{% endfor %}}"


# As Mistral's: thoughts are a part of the content.
IN_PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% elif p.type == 'thinking' %}[THINK]{{ p.thinking }}[/THINK]"
    "{% else %}{{ raise_exception('only texts') }}{% endif %}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("key", ("reasoning_content", "thinking", "reasoning", "thought"))
def test_thoughts_are_where_a_template_reads_them(key):
    assert answered(thinking(key), ANSWER) == "Hi<think>Hm.</think>Yes."
    other = {"role": "assistant", "content": "Yes.", "reasoning": "Hm."}  # as some servers call them
    assert answered(thinking(key), other) == "Hi<think>Hm.</think>Yes."
    assert answered(thinking(key), {**ANSWER, "reasoning_content": ""}) == "HiYes."


def test_thoughts_may_be_a_part_of_the_content():
    assert answered(IN_PARTS, ANSWER) == "Hi[THINK]Hm.[/THINK]Yes."
    assert answered(IN_PARTS, CALLING) == "Hi[THINK]Hm.[/THINK][TOOL_CALLS]now"
    parts = {**ANSWER, "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}
    assert answered(IN_PARTS, parts) == "Hi[THINK]Hm.[/THINK]One.Two."


@pytest.mark.parametrize("source", (TURNS, "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"))
def test_other_templates_get_no_thoughts(source):
    assert "Hm." not in answered(source, ANSWER) and "thinking" not in answered(source, ANSWER)


ADDING = (  # as DeepSeek R1's: the arguments are added to a text
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}{% for c in m.tool_calls %}"
    "{{ '<call>' + c.function.name + c.function.arguments }}{% endfor %}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}"
)


@pytest.mark.parametrize("content", (None, ""))
def test_arguments_are_a_text_where_a_template_adds_them(content):
    assert answered(ADDING, {**CALLING, "content": content}) == 'Hi<call>now{"a": "é"}'
    objects = ADDING.replace("c.function.arguments", "(c.function.arguments.values() | first)")
    assert answered(objects, {**CALLING, "content": content}) == "Hi<call>nowé"


# ------------------------------------------------------------------------------------------------ tools

WITH_TOOLS = (
    "{% for tool in tools %}{{ tool.function.name }};{% endfor %}<tool_call>"  # fails without tools
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
    "{% endfor %}{{ eos_token }}"
)
NAMED = [{"name": "default", "template": TURNS}, {"name": "tool_use", "template": WITH_TOOLS}]


def in_config(folder: Path) -> ChatTemplate | None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"eos_token": "</s>", "chat_template": NAMED}))
    return folder_chat_template(folder)


def in_files(folder: Path) -> ChatTemplate | None:
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    (folder / "chat_template.jinja").write_text(TURNS)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(WITH_TOOLS)
    return folder_chat_template(folder)


def in_gguf(folder: Path) -> ChatTemplate | None:
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_chat_template(NAMED)
    writer.add_array("tokenizer.ggml.tokens", ["a", "</s>"])
    writer.add_eos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return open_chat_template(folder / "model.gguf")


@pytest.mark.parametrize("made", (in_config, in_files, in_gguf))
def test_a_template_of_its_own_renders_tools(made, tmp_path):
    template = made(tmp_path)
    assert template is not None and template.with_tools is not None
    assert template.render([QUESTION]) == template.render([QUESTION], tools=[]) == "<user>Hi\n"
    assert template.render([QUESTION, CALLING], tools=TOOLS) == (
        'weather;now;<tool_call>Hi{"name": "now", "arguments": {"a": "é"}}</s>'
    )


def test_answers_with_tools_are_planned_by_the_template_for_tools(tmp_path):
    pytest.importorskip("llguidance")
    tokenizer = folder_tokenizer(speaking_model.write(tmp_path / "model"))
    answers = AnswerFormat(tokenizer, in_config(tmp_path), Grammars(tokenizer))
    assert answers.plan([QUESTION], tools=TOOLS).prompt == "weather;now;<tool_call>Hi</s>"
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        assert answers.plan([QUESTION], **options).prompt == "<user>Hi\n"
    unknown = ChatTemplate(TURNS, HERE, with_tools=ChatTemplate("{{ tools | tojson }}", HERE))
    prompt = AnswerFormat(tokenizer, unknown, Grammars(tokenizer)).plan([QUESTION], tools=TOOLS).prompt
    assert prompt.startswith("<system>You can call these functions:")  # the form of its calls is not known


def test_a_converted_folder_keeps_the_template_for_tools(tmp_path):
    keys = {key.name: key.value for key in _template_keys(in_config(tmp_path))}
    assert keys == {
        "tokenizer.chat_template": TURNS, "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": WITH_TOOLS,
    }  # fmt: skip
    assert [key.name for key in _template_keys(ChatTemplate(TURNS, HERE))] == ["tokenizer.chat_template"]


def test_a_template_that_fails_on_calls_still_says_so(tmp_path):
    """Kimi's form is known, but this template cannot write it: its calls must not get lost."""
    pytest.importorskip("llguidance")
    tokenizer = folder_tokenizer(speaking_model.write(tmp_path / "model"))
    source = (
        "{{ tools | tojson }}<|tool_calls_section_begin|>{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls %}{{ messages.append(c) }}{% endfor %}{% endfor %}"
    )
    answers = AnswerFormat(tokenizer, ChatTemplate(source, HERE), Grammars(tokenizer))
    with pytest.raises(ChatTemplateError, match="append"):
        answers.plan([QUESTION, CALLING], tools=TOOLS)


# As DeepSeek V3.1's: it writes calls and results, but does not tell a model of its tools.
UNTOLD = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'tool' %}"
    "<result>{{ m.content }}</result>{% elif m.tool_calls %}{{ m.content or '' }}<｜tool▁calls▁begin｜>"
    "{% for c in m.tool_calls %}{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' }}"
    "{{ c.function.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>"
    "{% else %}<user>{{ m.content }}{% endif %}{% endfor %}"
)


def test_calls_and_results_are_the_template_s_even_if_it_does_not_tell_of_tools(tmp_path):
    pytest.importorskip("llguidance")
    tokenizer = folder_tokenizer(speaking_model.write(tmp_path / "model"))
    history = [QUESTION, {**CALLING, "content": "I look. "}, {"role": "tool", "content": "5"}]

    def prompt(source: str, **options) -> str:
        return (
            AnswerFormat(tokenizer, ChatTemplate(source, HERE), Grammars(tokenizer))
            .plan(history, **options)
            .prompt
        )

    call = '<｜tool▁call▁begin｜>now<｜tool▁sep｜>{"a": "é"}<｜tool▁call▁end｜>'
    call = f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"
    told = prompt(UNTOLD, tools=TOOLS)
    assert told.startswith("You can call these functions:")
    assert told.endswith(f"<user>HiI look. {call}<result>5</result>")
    assert prompt(UNTOLD) == f"<user>HiI look. {call}<result>5</result>"
    without = UNTOLD.replace("<result>{{ m.content }}</result>", "")  # then both are texts
    assert prompt(without).endswith(f"{call}<user><tool_response>\n5\n</tool_response>")
