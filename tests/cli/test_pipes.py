"""What comes from stdin and goes to stdout: pipes, files, closed ones, and readers that leave."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airllm.cli import stdin_prompt as piped_text
from airllm.cli import terminal
from airllm.cli.stdin_prompt import with_stdin

ROOT = Path(__file__).parents[2]


def test_a_reader_that_has_enough_and_ctrl_c(folder):
    command = [sys.executable, "-m", "airllm", "generate", folder, "the", "-n", "100000", "--context=100000"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cpp_ext'}"}
    for enough in (True, False):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        assert process.stdout.read(4)
        if enough:
            process.stdout.close()
        else:
            process.send_signal(signal.SIGINT)
        error = process.stderr.read().decode()
        assert process.wait(60) == (141 if enough else 130)
        assert "Traceback" not in error and ("ended by: interrupted" in error) != enough
        process.stderr.close()


def run_piped(*arguments: object, **how) -> subprocess.CompletedProcess:
    """The command as a shell starts it."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'cpp_ext'}",
        "AIRLLM_BACKEND": "python",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "airllm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env=environment, timeout=60, **how)


def test_what_is_piped_follows_the_prompt(folder, engine):
    done = run_piped("generate", folder, "he", "--raw", "-q", "-n", 5, input=b"the thin\nman\n")
    expected = engine.generate("he\n\nthe thin\nman\n", 5) + "\n"
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, expected, b"")


def descriptor(kind: str, path: Path, data: bytes) -> int | None:
    """What a process may find as its stdin."""
    if kind == "closed":
        return None
    if kind == "pipe":
        there, here = os.pipe()
        os.write(here, data)
        os.close(here)
        return there
    if kind == "terminal":
        return os.openpty()[1]  # at which nobody types
    path.write_bytes(data)
    return os.open(path if kind == "file" else os.devnull, os.O_RDONLY)


@pytest.mark.parametrize(
    ("kind", "data", "prompt", "expected"),
    (
        ("pipe", b"a\nb\n", "Sum:", "Sum:\n\na\nb\n"),
        ("file", b"a\nb\n", "Sum:", "Sum:\n\na\nb\n"),
        ("pipe", b"", "Sum:", "Sum:"),
        ("pipe", b" \n", "Sum:", "Sum:"),
        ("file", b"", "Sum:", "Sum:"),
        ("null", b"", "Sum:", "Sum:"),
        ("terminal", b"", "Sum:", "Sum:"),
        ("closed", b"", "Sum:", "Sum:"),
        ("pipe", b" a\n", None, " a\n"),
        ("pipe", b" a\n", "-", " a\n"),
        ("null", b"", None, None),
        ("closed", b"", "-", None),
        ("pipe", b"a \xff", "Sum:", "stdin has byte 0xff, expected text in UTF-8"),
        ("file", b"\xfe", None, "stdin has byte 0xfe, expected text in UTF-8"),
    ),
)
def test_what_stdin_adds_to_a_prompt(monkeypatch, tmp_path, kind, data, prompt, expected):
    number = descriptor(kind, tmp_path / "notes", data)
    stdin = None if number is None else os.fdopen(number, encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", stdin)
    if expected is None or expected.startswith("stdin"):
        with pytest.raises(terminal.Refused, match=expected or "there is no prompt: give one, or pipe"):
            with_stdin(prompt)
    else:
        assert with_stdin(prompt) == expected


def test_a_pipe_that_stays_open_is_waited_for_and_that_is_said(monkeypatch, capsys):
    there, here = os.pipe()
    monkeypatch.setattr(piped_text, "_PATIENCE", 0.05)
    monkeypatch.setattr(sys, "stdin", os.fdopen(there, encoding="utf-8"))
    later = threading.Timer(0.3, lambda: (os.write(here, b"late"), os.close(here)))
    later.start()
    assert with_stdin("a") == "a\n\nlate"
    later.join()
    assert (
        capsys.readouterr().err == "airllm: waiting for the end of stdin (</dev/null where there is none)\n"
    )


def test_bytes_that_are_no_text_are_a_line(folder):
    done = run_piped(
        "generate", folder, b"\xff\xfe".decode("utf-8", "surrogateescape"), stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr.startswith(b"airllm: ") and b"expected Unicode" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_closed_stdout_is_a_line(folder):
    for command in (["generate", folder, "hi"], ["chat", folder], ["info"]):
        done = run_piped(*command, input=b"", preexec_fn=lambda: os.close(1))
        expected = b"airllm: stdout is closed, expected a terminal, a file or a pipe\n"
        assert (done.returncode, done.stderr) == (1, expected)


def test_a_reader_of_a_conversation_that_has_enough(folder):
    command = [sys.executable, "-m", "airllm", "chat", str(folder), "-n", "20"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cpp_ext'}", "AIRLLM_BACKEND": "python"}
    there, here = os.pipe()
    os.close(there)
    done = subprocess.run(command, input=b"hi\nhe\n", stdout=here, stderr=subprocess.PIPE, env=environment)
    os.close(here)
    assert (done.returncode, done.stderr) == (141, b"")
