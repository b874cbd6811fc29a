"""Chat templates that would take all memory, or never end; and long conversations, which are neither."""

import tracemalloc
from pathlib import Path

import pytest

from airllm.text import sandbox
from airllm.text.chat_template import ChatTemplate, ChatTemplateError
from tests.fuzz.seeds import CORPUS
from tests.fuzz.uses import TOOLS

LOOP, END = "{% for i in range(99999) %}", "{% endfor %}"
DOUBLED = (
    "{%% set n = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set n.x = %s %%}{%% endfor %%}{{ n.x }}"
)


@pytest.mark.parametrize(
    "source",
    (
        DOUBLED % ("'xxxxxxxx'", "n.x ~ n.x"),
        DOUBLED % ("'xxxxxxxx'", "n.x + n.x"),
        DOUBLED % ("[1]", "n.x + n.x"),
        DOUBLED % ("[1]", "[n.x, n.x]"),
        DOUBLED % ("(1,)", "(n.x, n.x)"),
        DOUBLED % ("{}", "{1: n.x, 2: n.x}"),
        DOUBLED % ("[1]", "[namespace(a=n.x), namespace(a=n.x)]"),
        "{{ 'x'.ljust(9999999999) }}",
        "{{ 'x' | center(9999999999) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ ('%(a)s' * 99999) % {'a': 'x' * 9999} }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 9999999999) }}",
        "{{ range(99999) | join('x' * 9999) }}",
        "{{ ('x' * 999).join(range(9999) | map('string')) }}",
        "{{ ('x' * 99999).replace('x', 'y' * 9999) }}",
        "{{ 'x' | replace('', 'y' * 9999, 9) }}" + "{{ ('x' * 99999) | replace('x', 'y' * 9999) }}",
        "{{ ('x' * 99999).translate({120: 'y' * 9999}) }}",
        "{{ messages | tojson(indent=9999999999) }}",
        "{{ 'x' | indent(9999999999, true) }}",
        "{{ messages | batch(9999999999, 'x') | list }}",
        "{{ messages | slice(9999999999) | list }}",
        "{{ (1).to_bytes(9999999999, 'big') }}",
        "{{ 9 | round(9999999999, 'ceil') }}",
        "{% set x %}" + LOOP + "{{ 'x' * 99999 }}" + END + "{% endset %}{{ x }}",
        "{% macro f() %}" + LOOP + "{{ 'x' * 99999 }}" + END + "{% endmacro %}{{ f() }}",
        "{% set n = namespace(x=[]) %}" + LOOP + "{% set n.x = [n.x, ('x' * 9999999)[i:]] %}" + END,
    ),
)
def test_a_template_makes_nothing_large(source, monkeypatch):
    """Each of these would take gigabytes, or hours."""
    monkeypatch.setattr(sandbox, "MOST_STEPS", 200_000)  # a twentieth of the time, and of the memory
    monkeypatch.setattr(sandbox, "MOST_WEIGHT", 1 << 20)
    template = ChatTemplate(source, Path("model.gguf"))
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError, match=r"model.gguf: the chat template does not end: (more|a )"):
            template.render([{"role": "user", "content": "Hi"}])
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ("chatml", "tools", "thoughts"))
def test_a_long_conversation_is_within_the_limits(name):
    """A hundred thousand words: a template that joins them as it goes copies them many times."""
    path = CORPUS / "template" / f"{name}.jinja"
    template = ChatTemplate(path.read_text(), path)
    turns = [{"role": ("user", "assistant")[i % 2], "content": "word " * 500} for i in range(201)]
    assert len(template.render(turns, tools=TOOLS * 30)) > 50 * 2499


def test_texts_that_grow_turn_by_turn_are_within_the_limits():
    source = (
        "{% set n = namespace(t='') %}{% for m in messages %}{% set n.t = n.t ~ m.content %}{% endfor %}"
        "{{ n.t }}"
    )
    turns = [{"role": "user", "content": "word " * 500} for _ in range(400)]
    assert len(ChatTemplate(source, Path("model.gguf")).render(turns)) == 400 * 2500
