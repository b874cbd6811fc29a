"""`airllm` at a terminal: what is typed, when, and what the screen shows."""

import json

from pseudo_terminal import terminal

from tests.support.models import speaking_model

PROMPT = "\x1b[?2004h"  # pasted text is told from typed one: a line is read


WAIT = """
import time
from airllm.progress import Waiting
with Waiting("A short one"):
    pass
with Waiting("Opening x") as wait:
    time.sleep(1)
    wait.advance(3, 7)
    time.sleep(0.4)
print("done")
"""


def test_a_wait_is_told_on_a_terminal_after_a_moment_and_how_far_it_is(tmp_path):
    with terminal("-c", WAIT, state=tmp_path, module=False) as screen:
        seen = screen.until("done")
    assert "Opening x" in seen and "3 of 7 tokens" in seen and "A short one" not in seen


def test_a_terminal(tmp_path):
    """Pasted lines are one message, history is kept, Ctrl-D leaves the shell a line of its own."""
    folder = speaking_model.write(tmp_path / "model")
    (tmp_path / "state").mkdir()
    saved = tmp_path / "talk.json"
    chat = ("chat", folder, "-n", 2, "--temperature=0", "--context=300")
    with terminal(*chat, state=tmp_path / "state") as screen:
        assert "a context of 300 tokens" in screen.until(PROMPT)
        screen.type("\x1b[200~def f():\r    pass\r\x1b[201~\r")
        screen.until("context ")
        screen.until(PROMPT)
        screen.type('"""\r  a\rb\r"""\r')
        screen.until("context ")
        screen.until(PROMPT)
        screen.type(f"/save {saved}\r")
        screen.until("4 messages are in")
        screen.until(PROMPT)
        screen.type("\x04")
        assert screen.process.wait(20) == 0
        assert "\r\n" in screen.rest()
    questions = [each["content"] for each in json.loads(saved.read_text())["messages"][::2]]
    assert questions == ["def f():\n    pass", "  a\nb"]
    with terminal(*chat, state=tmp_path / "state") as screen:
        screen.until(PROMPT)
        screen.type("\x1b[A")
        screen.until(f"/save {saved}"[:12])
    assert (tmp_path / "state" / "history").stat().st_mode & 0o077 == 0


def test_what_is_typed_while_an_answer_comes_is_not_in_it_and_waits_for_its_turn(tmp_path):
    folder = speaking_model.write(tmp_path / "model")
    with terminal("chat", folder, "-n", 150, "--context=400", "--seed=1", state=tmp_path) as screen:
        screen.until(PROMPT)
        screen.type("hi\r")
        screen.until("\x1b[?2004l")
        screen.until("\r\n")  # of the answer's first lines
        screen.type("zqzq\r")
        answer = screen.until(PROMPT)
        assert "context " in answer and "zq" not in answer
        screen.until("zqzq")  # not sent: a line of the next entry
        screen.type("\x03")
        screen.until(PROMPT)
        screen.type("/bye\r")
        assert screen.process.wait(20) == 0


def test_ctrl_c_stops_an_answer_and_keeps_it(tmp_path):
    folder = speaking_model.write(tmp_path / "model")
    saved = tmp_path / "talk.json"
    with terminal("chat", folder, "-n", 9000, "--context=9999", "--seed=1", state=tmp_path) as screen:
        screen.until(PROMPT)
        screen.type("hi\r")
        screen.until("\x1b[?2004l")
        screen.until("\r\n")  # of the answer's first lines
        screen.type("\x03")
        assert "ended by: interrupted" in screen.until(PROMPT)
        screen.type(f"/save {saved}\r")
        screen.until("messages are in")
    answer = json.loads(saved.read_text())["messages"][1]
    assert answer["role"] == "assistant" and answer["content"]
