"""`airllm chat`, on a tiny model."""

import re

from command_line import CHAT, run

from airllm.cli import chat
from tests.support.models import speaking_model


def test_chat_answers_to_what_was_said(folder, engine, capsys, typed):
    typed("hi\n\nhe\n/clear\nhi\n/exit\nnot read\n")
    assert run("chat", folder, "-n", 6, "--temperature=0", "-q", "--context=200") == 0
    first = engine.generate(CHAT, 6)
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": first}]
    engine.context = 200
    second = engine.chat([*said, {"role": "user", "content": "he"}], 6)
    assert capsys.readouterr() == (f"{first}\n{second}\n{first}\n", "")


def test_chat_with_a_system_prompt(folder, engine, capsys, typed):
    typed("hi")
    assert run("chat", folder, "-n", 6, "--temperature=0", "-q", "--system", "be") == 0
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    assert capsys.readouterr().out == engine.chat(messages, 6) + "\n"


def test_a_full_context_drops_the_oldest_turns_and_says_so(folder, engine, capsys, typed):
    context = len(engine.tokenizer.encode(CHAT)) + 9
    typed("hi\nhi\nhi\n")
    assert run("chat", folder, "--temperature=0", "-q", "-n", 4, f"--context={context}") == 0
    out, err = capsys.readouterr()
    assert out == 3 * (engine.generate(CHAT, 4) + "\n")
    assert err == 2 * f"[the context of {context} tokens is full: the 2 oldest messages are left out]\n"


def test_a_question_that_is_too_long_fails_and_the_conversation_goes_on(folder, engine, capsys, typed):
    typed("hi\n" + "a" * 80 + "\n/clear\nhi\n")
    assert run("chat", folder, "--temperature=0", "-q", "-n", 4) == 1
    out, err = capsys.readouterr()
    assert out == 2 * (engine.generate(CHAT, 4) + "\n")
    assert re.fullmatch(
        r"airllm: the conversation has \d+ tokens, expected at most 64: .*\(--context\)\n", err
    )


def test_ctrl_c_breaks_off_an_answer_and_keeps_what_was_said(engine, capsys, typed, monkeypatch):
    asked = []

    def stream_chat(messages, **options):
        asked.append(messages)
        yield "so "
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "stream_chat", stream_chat)
    typed("a\nb\n")
    assert not chat.converse(engine, None, {})
    assert capsys.readouterr().out == "so \nso \n"
    assert [each["content"] for each in asked[1]] == ["a", "so ", "b"]


def test_chat_needs_a_template(tmp_path, capsys, typed):
    (speaking_model.write(tmp_path) / "tokenizer_config.json").unlink()
    typed("hi")
    assert run("chat", tmp_path) == 1
    assert "has no chat template: use generate" in capsys.readouterr().err
