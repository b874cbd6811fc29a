"""A conversation: what is typed, what it commands, and how answers come to the screen."""

import io
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from airllm import progress
from airllm.cli.chat import Talk, converse, line_editor, slash_commands
from airllm.cli.terminal import Wrapped
from airllm.engine.request import Statistics


@pytest.fixture
def talk(engine, monkeypatch):
    """A conversation with a model that says how many messages it was asked with, and its last word."""

    def stream_chat(messages, **options):
        said.append(([dict(each) for each in messages], options))
        yield f"{len(messages)} "
        yield messages[-1]["content"]

    said: list = []
    monkeypatch.setattr(engine, "stream_chat", stream_chat)
    found = Talk(engine, None, {"max_new_tokens": 9, "temperature": 0.5})
    found.said = said
    return found


def contents(talk: Talk) -> list[str]:
    return [each["content"] for each in talk.messages]


# ------------------------------------------------------------------------------------------------ typed


@pytest.mark.parametrize(
    ("entry", "expected"),
    (
        ("    return x", "    return x"),
        ("a  \n\n   b", "a  \n\n   b"),
        ("one\\\ntwo\\\n three", "one\ntwo\n three"),
        ('"""\n  def f():\n      pass\n"""', "  def f():\n      pass"),
        ('"""one\ntwo"""', "one\ntwo"),
        ('"""\n\n a\n\n"""', "\n a\n"),
        ('"""Doc."""\nimport os', '"""Doc."""\nimport os'),
        ('"""never closed\nmore', "never closed\nmore"),
        ("//clear", "/clear"),
        (" /clear", " /clear"),
        ("typed while an answer came\n", "typed while an answer came"),
    ),
)
def test_what_is_typed_as_a_message(entry, expected):
    assert line_editor.text_of(entry) == expected
    assert line_editor.command_of(entry) is None


@pytest.mark.parametrize(
    ("entry", "expected"),
    (
        ("/help", ("help", "")),
        ("/?", ("?", "")),
        ("/bye  ", ("bye", "")),
        ("/system be  brief", ("system", "be  brief")),
        ('/system """\nbe\nbrief\n"""', ("system", "be\nbrief")),
        ("/tmp is what?", ("tmp", "is what?")),
        ("/usr/bin/python is what?", None),
        ("/etc.d", None),
        ("/", None),
        ("/ a", None),
        (" /help", None),
        ("//help", None),
    ),
)
def test_what_is_a_command(entry, expected):
    assert line_editor.command_of(entry) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    (
        ("a\nb\n", ["a", "b"]),
        ("a\\\nb\nc", ["a\\\nb", "c"]),
        ('"""\n a\n\nb\n"""\nc\n', ['"""\n a\n\nb\n"""', "c"]),
        ('"""\na\n', ['"""\na']),
        ("  a  \n\n", ["  a  ", ""]),
        ("", []),
    ),
)
def test_lines_that_belong_together(monkeypatch, text, expected):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert list(line_editor.entries(terminal=False)) == expected


# ------------------------------------------------------------------------------------------------ commands


def test_every_command_is_in_the_help(talk, capsys):
    for name in ("help", "?"):
        assert slash_commands.run(talk, name, "")
        err = capsys.readouterr().err
        for wanted in slash_commands.names():
            assert re.search(rf"{wanted}\b", err)
        assert all(len(line) < 80 for line in err.splitlines())


@pytest.mark.parametrize("name", ("bye", "exit", "quit", "EXIT"))
def test_leaving(talk, name):
    assert slash_commands.run(talk, name, "") is False


def test_what_is_no_command_is_named(talk):
    with pytest.raises(ValueError, match="unknown command /frob: /help lists them; to send it as text, put"):
        slash_commands.run(talk, "frob", "it")
    with pytest.raises(ValueError, match="/clear takes nothing, found 'all'"):
        slash_commands.run(talk, "clear", "all")


def test_clear_undo_and_system(talk, capsys):
    talk.ask("a")
    talk.ask("b")
    assert contents(talk) == ["a", "1 a", "b", "3 b"]
    slash_commands.run(talk, "undo", "")
    assert contents(talk) == ["a", "1 a"] and "Taken back: b" in capsys.readouterr().err
    slash_commands.run(talk, "system", "be brief")
    assert contents(talk) == ["be brief", "a", "1 a"] and talk.messages[0]["role"] == "system"
    slash_commands.run(talk, "system", "")
    assert "System prompt: be brief" in capsys.readouterr().err
    slash_commands.run(talk, "clear", "")
    assert contents(talk) == ["be brief"] and "begins again" in capsys.readouterr().err
    slash_commands.run(talk, "system", '""')
    assert contents(talk) == []
    with pytest.raises(ValueError, match="nothing was asked yet"):
        slash_commands.run(talk, "undo", "")


def test_retry_answers_the_last_question_again(talk, monkeypatch):
    with pytest.raises(ValueError, match="nothing was asked yet"):
        slash_commands.run(talk, "retry", "")
    talk.ask("a")
    talk.ask("b")
    slash_commands.run(talk, "retry", "")
    assert contents(talk) == ["a", "1 a", "b", "3 b"] and len(talk.said) == 3
    assert talk.said[1][0] == talk.said[2][0]

    def refuse(*_, **__):
        raise ValueError("refused")

    monkeypatch.setattr(talk.engine, "stream_chat", refuse)
    with pytest.raises(ValueError, match="refused"):
        slash_commands.run(talk, "retry", "")
    assert contents(talk) == ["a", "1 a", "b", "3 b"]


def test_settings(talk, capsys):
    for rest in ("temperature 0.2", "top-p 0.9", "--top-k 5", "n 3", "seed 7", "stop the end"):
        slash_commands.run(talk, "set", rest)
    wanted = {"temperature": 0.2, "top_p": 0.9, "top_k": 5, "max_new_tokens": 3, "seed": 7, "stop": "the end"}
    assert talk.settings == wanted
    talk.ask("a")
    assert {name: talk.said[0][1][name] for name in wanted} == wanted
    slash_commands.run(talk, "set", "seed none")
    slash_commands.run(talk, "set", "stop none")
    assert talk.settings["seed"] is None and talk.settings["stop"] == ()
    capsys.readouterr()
    slash_commands.run(talk, "set", "")
    shown = capsys.readouterr().err
    assert "  temperature 0.2\n" in shown and "  seed none\n" in shown and "  min_p 0.0\n" in shown


@pytest.mark.parametrize(
    ("rest", "message"),
    (
        ("temperature -1", "temperature has value -1.0, expected a number from 0 on"),
        ("temperature warm", "temperature has value 'warm', expected a number"),
        ("top_k 1.5", "top_k has value '1.5', expected a whole number"),
        ("warmth 1", "/set has no setting warmth, expected one of temperature, top_k"),
        ("seed", "/set seed has no value: /set seed VALUE"),
    ),
)
def test_settings_that_cannot_be(talk, rest, message):
    before = dict(talk.settings)
    with pytest.raises(ValueError, match=re.escape(message)):
        slash_commands.run(talk, "set", rest)
    assert talk.settings == before


def test_a_conversation_is_saved_and_goes_on(talk, tmp_path):
    talk.system = "be"
    talk.ask("naïve 漢字")
    path = tmp_path / "talk.json"
    for _ in range(2):  # its own file is written over
        slash_commands.run(talk, "save", str(path))
    assert [each["role"] for each in json.loads(path.read_text())["messages"]] == [
        "system",
        "user",
        "assistant",
    ]
    assert list(tmp_path.iterdir()) == [path]
    saved = contents(talk)
    slash_commands.run(talk, "clear", "")
    slash_commands.run(talk, "load", str(path))
    assert contents(talk) == saved and talk.system == "be"
    path.write_text(json.dumps([{"role": "user", "content": "hi"}]))
    slash_commands.run(talk, "load", str(path))
    assert contents(talk) == ["hi"]


@pytest.mark.parametrize(
    "text", ("no JSON", "{}", '{"messages": [1]}', '[{"role": "user"}]', "[[]]", "\udcff")
)
def test_files_that_are_no_conversations_are_neither_read_nor_written_over(talk, tmp_path, text):
    path = tmp_path / "notes"
    path.write_text(text, errors="surrogateescape")
    before = path.read_bytes()
    for name in ("load", "save"):
        with pytest.raises(ValueError, match="notes has no conversation, expected JSON with messages"):
            slash_commands.run(talk, name, str(path))
        with pytest.raises(ValueError, match=f"/{name} needs the name of a file"):
            slash_commands.run(talk, name, "")
    assert path.read_bytes() == before
    with pytest.raises(OSError):
        slash_commands.run(talk, "load", str(tmp_path / "none"))


def test_stats(talk, engine, capsys):
    slash_commands.run(talk, "stats", "")
    assert "Nothing was answered yet." in capsys.readouterr().err
    engine.generate("the thin", 5)
    slash_commands.run(talk, "stats", "")
    err = capsys.readouterr().err
    assert "5 tokens, " in err and "ended by: length" in err and engine.backend.device() in err


def test_an_input_that_failed_is_told_by_the_result(talk, monkeypatch, capsys):
    for text, failed in (("hi\n/help\n", False), ("/frob\nhi\n", True), ("/load /none/at/all\n", True)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        assert converse(talk.engine, None, {}) is failed
    assert "/none/at/all: No such file or directory" in capsys.readouterr().err


def test_an_answer_that_was_broken_off_before_it_began_is_not_kept(engine, monkeypatch, capsys):
    def stream_chat(messages, **options):
        engine._generator.statistics = Statistics(9, 0, 0, 0.0, 0.0, reasons=("interrupted",))
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(engine, "stream_chat", stream_chat)
    talk = Talk(engine, None, {})
    talk.ask("a")
    assert talk.messages == []


# ------------------------------------------------------------------------------------------------ the screen


def wrap(text: str, columns: int, pieces: int = 1) -> str:
    out = io.StringIO()
    found = Wrapped(out, lambda: columns)
    for start in range(0, len(text), pieces):
        found.add(text[start : start + pieces])
    found.finish()
    return out.getvalue()


@pytest.mark.parametrize("pieces", (1, 3, 100))
@pytest.mark.parametrize(
    ("text", "expected"),
    (
        ("the thin man in a hat", "the thin\nman in a\nhat"),
        ("the thin\nman in a hat", "the thin\nman in a\nhat"),
        ("aaaaaaaa bb", "aaaaaaaa\nbb"),
        ("aaaaaaaaaaaa bb", "aaaaaaaaaaaa bb"),
        ("a  b\n\n  c", "a  b\n\n  c"),
        ("trailing \n", "trailing \n"),
        ("漢字漢字漢字", "漢字漢字\n漢字"),
        ("```\nlong = line(of, code)\n```\nthe thin man", "```\nlong = line(of, code)\n```\nthe thin\nman"),
        (
            "  ```py x y z a b c\na b c d e f\n  ```\nthe thin man",
            "  ```py x y z a b c\na b c d e f\n  ```\nthe thin\nman",
        ),
    ),
)
def test_words_do_not_break_at_the_edge(text, expected, pieces):
    assert wrap(text, 8, pieces) == expected


def test_where_what_was_typed_is_kept(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("AIRLLM_HISTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert line_editor.history_file() == tmp_path / "airllm" / "chat_history"
    monkeypatch.setenv("AIRLLM_HISTORY", str(tmp_path / "mine"))
    assert line_editor.history_file() == tmp_path / "mine"
    monkeypatch.setenv("AIRLLM_HISTORY", "off")
    assert line_editor.history_file() is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRLLM_HISTORY", str(tmp_path / "file" / "history"))
    line_editor._history().append_string("a")  # in memory
    assert "the input history is not saved: " in capsys.readouterr().err


def test_without_a_home_nothing_is_kept(monkeypatch, capsys):
    for name in ("AIRLLM_HISTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does without HOME and passwd
    line_editor._history().append_string("a")
    err = capsys.readouterr().err
    assert not Path("~").exists() and "the input history is not saved: " in err and "home" in err


def test_a_model_does_not_steer_the_terminal():
    assert (
        wrap("a\x1b[2J\x07 b\x9b1m\r\n```\n\x1b]0;x\tb", 80)
        == "a\ufffd[2J\ufffd b\ufffd1m\n```\n\ufffd]0;x\tb"
    )


def test_nothing_is_said_of_a_wait_without_a_terminal(capsys):
    with progress.Waiting("Opening") as wait:
        wait.advance(1, 2)
        time.sleep(0.01)
    assert capsys.readouterr() == ("", "")
