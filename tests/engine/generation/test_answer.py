"""`engine.answer`: thoughts, text and tool calls of a conversation, apart."""

import json

import pytest

from airllm.engine.answer import Answer, Call
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import speaking_model

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.reasoning_content }}"
    "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}{# </think> #}"
)
PARAMETERS = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
TOOLS = [{"type": "function", "function": {"name": "light", "parameters": PARAMETERS}}]
QUESTION = [{"role": "user", "content": "Light?"}]


@pytest.fixture
def engine(tmp_path):
    folder = speaking_model.write(tmp_path / "model", max_position_embeddings=1024)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.7}))
    with LayerWiseInferenceEngine(folder, backend="python") as opened:
        yield opened


def says(engine, monkeypatch, *pieces: str) -> list:
    """The model answers with these pieces; returns the requests that it gets."""
    asked = []

    def stream(tokens, wanted, name):
        asked.append((engine.tokenizer.decode(tokens), wanted))
        return iter(pieces)

    monkeypatch.setattr(engine._generator, "stream", stream)
    return asked


def test_parts_are_apart(engine, monkeypatch):
    call = '<tool_call>\n{"name": "light", "arguments": {"on": true}}\n</tool_call>'
    asked = says(engine, monkeypatch, "<thi", "nk>hm</think>\n\nYes.", call[:30], call[30:])
    answer = engine.answer(QUESTION, 9, tools=TOOLS, seed=3)
    assert (answer.text, answer.reasoning) == ("Yes.", "hm")
    ((name, arguments),) = [(each.name, each.parsed()) for each in answer.calls]
    assert (name, arguments) == ("light", {"on": True})
    ((prompt, wanted),) = asked
    assert '"name": "light"' in prompt and wanted.new_constraint is not None
    assert (wanted.sampling.temperature, wanted.sampling.seed, wanted.max_new_tokens) == (0.7, 3, 9)
    asked = says(engine, monkeypatch, "Done.")
    history = [*QUESTION, answer.message(), {"role": "tool", "content": "ok"}]
    assert engine.answer(history, temperature=0.0) == Answer("Done.")
    assert '<assistant>Yes.hm{"on": true}<tool>ok' in asked[0][0]
    assert asked[0][1].sampling.temperature == 0 and asked[0][1].new_constraint is None


def test_a_required_call_is_valid(engine):
    pytest.importorskip("llguidance")
    template = engine.path / "chat_template.jinja"
    template.write_text(TEMPLATE.replace("</think>", ""))  # else a random model only thinks
    answer = engine.answer(QUESTION, 60, tools=TOOLS, tool_choice="required", temperature=0)
    call = answer.calls[0]
    assert call.name == "light" and call.parsed() in ({"on": True}, {"on": False})


def test_a_call_that_is_cut_off(engine, monkeypatch):
    says(engine, monkeypatch, '<tool_call>\n{"name": "light", "arguments": {"on": t')
    (call,) = engine.answer(QUESTION, tools=TOOLS).calls
    assert call == Call(call.id, "light", '{"on": t')
    with pytest.raises(ValueError, match="Expecting value"):
        call.parsed()


def test_tools_and_a_form_exclude_each_other(engine):
    with pytest.raises(ValueError, match="tools and a form of the text exclude each other"):
        engine.answer(QUESTION, tools=TOOLS, choices=["a"])
