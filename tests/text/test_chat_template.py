"""Chat templates: what they render, what they cannot do, and where they are."""

import json
from pathlib import Path

import jinja2
import pytest

from airllm.files import ModelFileError
from airllm.text import sandbox
from airllm.text.chat_template import ChatTemplate, ChatTemplateError, open_chat_template
from airllm.text.open_tokenizer import open_tokenizer

HI = [{"role": "user", "content": "Hi <b>"}]


def template(source: str, **names: str) -> ChatTemplate:
    return ChatTemplate(source, Path("model.gguf"), **names)


def test_the_real_template(real_file):
    chat = open_chat_template(real_file)
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    text = (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat.render(HI) == text
    assert chat.render(HI, add_generation_prompt=False) == text.removesuffix("<|im_start|>assistant\n")
    assert open_tokenizer(real_file).encode(text).count(1) == 3
    assert open_chat_template(real_file, "tool_use") is None


@pytest.mark.parametrize(
    ("source", "expected"),
    (
        ("{{ messages[0].content | tojson }}", '"Hi <b>"'),
        ("{{ {'a': 'é'} | tojson(indent=1) }}", '{\n "a": "é"\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}"
         "{{ i }}{% endfor %}", "013"),
        ("{% generation %}x{{ messages[0].role }}{% endgeneration %}", "xuser"),
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{% if tools is none %}none{% endif %}", "none"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ think }}", "no"),
    ),
)  # fmt: skip
def test_what_templates_use(source, expected):
    assert template(source, bos_token="<s>", eos_token="</s>").render(HI, think="no") == expected


@pytest.mark.parametrize(
    "source",
    (
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ messages[0].update(a=1) }}",
        "{% for i in range(10**7) %}{% endfor %}",
    ),
)
def test_a_template_cannot_reach_out(source):
    with pytest.raises(ChatTemplateError, match="model.gguf: the chat template fails on the messages: "):
        template(source).render(HI)


@pytest.mark.parametrize(
    "source",
    (
        "{% for i in range(9) %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
        "{% for i in range(9) if i % 2 %}{{ loop.previtem }}{{ i }}{{ loop.nextitem }}{% endfor %}",
        "{% for i in [] %}{{ i }}{% else %}none{% endfor %}",
        "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{{ loop.revindex }}{% endfor %}",
        "{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }};{% endfor %}",
        "{% macro f(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call f(2) %}in{% endcall %}",
        "{{ 3 * 4 }}{{ 'ab' * 2 }}{{ 2 * 'ab' }}{{ 2 ** 10 }}{{ 1.5 ** 2 }}{{ [0] * 3 }}",
        "{{ 1000000000 * 1.5 }}{{ 1.5 * 1000000000 }}{{ 1700000000 + 0.5 }}{{ 10 % 4 }}{{ '%d%%' % 5 }}",
    ),
)
def test_counting_changes_nothing(source):
    plain = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).from_string(source)
    assert template(source).render(HI) == plain.render(messages=HI) != ""


LOOP, END = "{% for a in range(99999) %}", "{% endfor %}"


@pytest.mark.parametrize(
    "source",
    (
        LOOP * 2 + END * 2,
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for a in [range(9)] recursive %}{{ loop([a] * 9) if loop.depth < 40 }}{% endfor %}",
        LOOP + "x" * 9999 + END,
        "{{ lipsum(n=1000000) }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 'abc' * 99999999 }}",
    ),
)
def test_a_template_ends(source, monkeypatch):
    monkeypatch.setattr(sandbox, "MOST_STEPS", 20_000)  # of what takes seconds, the first part
    with pytest.raises(
        ChatTemplateError, match="model.gguf: the chat template (fails on|does not end)"
    ) as error:
        template(source).render(HI)
    assert "\n" not in str(error.value)


def test_what_may_be_done_is_of_each_rendering(monkeypatch):
    monkeypatch.setattr(sandbox, "MOST_STEPS", 100)
    made = template("{% for i in range(60) %}{% endfor %}{{ messages | length }}")
    assert [made.render(HI) for _ in range(5)] == ["1"] * 5


def test_texts_that_no_tokenizer_takes_are_refused():
    half = [{"role": "user", "content": "a\udcff"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a\udcff"}]}]
    for messages in (half, parts):
        with pytest.raises(ValueError, match=r"messages\[0\]: .* has '.udcff' as character 1, expected Uni"):
            template("{{ messages[0].content }}").render(messages)
    with pytest.raises(ChatTemplateError, match="fails on the messages: UnicodeEncodeError: .*surrogates"):
        template(r"{{ '\udcff' }}").render(HI)


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
JOINED = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}"
PRINTED = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
TAKING = (
    "{% for m in messages %}<{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}>{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    (
        (JOINED, None, "<>"),
        (PRINTED, None, "<>"),
        (JOINED, PARTS, "<one\ntwo>"),
        (PRINTED, PARTS, "<one\ntwo>"),
        (TAKING, PARTS, "<onetwo>"),
        (JOINED, [], "<>"),
        (PRINTED, {"a": 1}, "<{'a': 1}>"),
        (PRINTED, [1], "<[1]>"),
    ),
)
def test_contents_as_clients_of_openai_write_them(source, content, expected):
    messages = [{"role": "user", "content": content}]
    assert template(source).render(messages) == expected
    assert messages == [{"role": "user", "content": content}]


def test_calls_of_tools_come_without_a_content():
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
    asks = (
        "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.name }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert template(asks).render([{**call, "content": None}]) == "f"
    adds = "{% for m in messages %}{{ m.content + m.tool_calls[0].function.name }}{% endfor %}"
    for message in (call, {**call, "content": None}):
        assert template(adds).render([message]) == "f"


@pytest.mark.parametrize(
    ("part", "message"),
    (
        ({"type": "image_url", "image_url": {"url": "x"}}, r"part of type 'image_url', expected 'text'"),
        ({"type": "text"}, "part with text of type NoneType, expected a str"),
    ),
)
def test_parts_that_are_no_text_are_refused(part, message):
    with pytest.raises(ValueError, match=rf"chat: messages\[1\] has a {message}"):
        template(TAKING).render([*HI, {"role": "user", "content": [*PARTS, part]}])


@pytest.mark.parametrize(
    "source",
    (
        "{% for a in [1] %}" * 21 + END * 21,
        "{% if a %}" * 100 + "{% endif %}" * 100,
        "{% break %}",
        "{{ " + "1" * 5000 + " }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    ),
)
def test_what_cannot_be_compiled_is_no_template(source):
    with pytest.raises(ModelFileError, match="gguf: the chat template is not a Jinja template") as error:
        template(source)
    assert "\n" not in str(error.value)


def test_errors_of_templates():
    with pytest.raises(ChatTemplateError, match="model.gguf: the chat template rejects the messages: roles!"):
        template("{{ raise_exception('roles!') }}").render(HI)
    with pytest.raises(ChatTemplateError, match="fails on the messages: UndefinedError: "):
        template("{{ messages[4].content }}").render(HI)
    with pytest.raises(ModelFileError, match=r"gguf: the chat template, line 2, is not a Jinja template"):
        template("a\n{% if %}")
    with pytest.raises(TypeError, match="chat: messages has type str, expected a list of dicts"):
        template("").render("Hi")
    with pytest.raises(TypeError, match=r"chat: messages\[0\] has type str, expected a dict"):
        template("").render(["Hi"])
    with pytest.raises(ValueError, match=r"chat: messages\[0\] has role None, expected a str"):
        template("").render([{"content": "Hi"}])


def test_templates_of_folders(tmp_path):
    assert open_chat_template(tmp_path) is None
    config = {"eos_token": {"content": "</s>"}, "chat_template": "one{{ eos_token }}"}
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(config))
    assert open_chat_template(tmp_path).render(HI) == "one</s>"
    both = [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "three"}]
    path.write_text(json.dumps({**config, "chat_template": both}))
    assert open_chat_template(tmp_path).render(HI) == "two"
    assert open_chat_template(tmp_path, "tool_use").render(HI) == "three"
    assert open_chat_template(tmp_path, "rag") is None
    (tmp_path / "chat_template.jinja").write_text("four{{ eos_token }}")
    assert open_chat_template(tmp_path).render(HI) == "four</s>"
    path.write_text(json.dumps({"chat_template": [{"name": "default"}]}))
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ModelFileError, match="tokenizer_config.json: chat_template holds .*expected a name"):
        open_chat_template(tmp_path)
