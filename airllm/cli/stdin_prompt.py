"""Text piped to stdin, as the prompt or appended to it."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from collections.abc import Iterator

from airllm.cli.terminal import Refused

_PATIENCE = 3.0  # seconds until the notice that the command waits for stdin


def with_stdin(prompt: str | None) -> str:
    """The prompt, an empty line, and the text of stdin; for `None` or "-", only stdin.

    With a prompt, reads stdin only if it is a pipe or a file: a terminal, or the stdin of a cron job, could
    block.
    """
    if prompt is None or prompt == "-":
        text = read()
        if not text.strip():
            raise Refused("there is no prompt: give one, or pipe a text to stdin")
        return text
    text = read() if _is_piped() else ""
    return f"{prompt}\n\n{text}" if text.strip() else prompt


def read() -> str:
    """All of stdin. Refused if it is not text."""
    if sys.stdin is None:  # it was closed before this process started
        return ""
    _say_what_is_waited_for()
    with only_text():
        return sys.stdin.read()


@contextlib.contextmanager
def only_text() -> Iterator[None]:
    """Inside the block, reading bytes from stdin that are not text raises Refused."""
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="strict")  # some locales accept invalid bytes
    try:
        yield
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x}"
        raise Refused(f"stdin has {found}, expected text in {error.encoding.upper()}") from None


def _is_piped() -> bool:
    number = _descriptor()
    if number is None:
        return False
    with contextlib.suppress(OSError):
        mode = os.fstat(number).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
    return False


def _say_what_is_waited_for() -> None:
    """Tell the user of a terminal, or of a pipe that stays open, that the command waits for stdin."""
    number = _descriptor()
    if number is None:
        return
    if sys.stdin.isatty():
        print("airllm: type the prompt; Ctrl-D on an empty line ends it", file=sys.stderr)
    elif os.name == "posix" and not select.select([number], [], [], _PATIENCE)[0]:
        print("airllm: waiting for the end of stdin (</dev/null where there is none)", file=sys.stderr)


def _descriptor() -> int | None:
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # no stdin, or an object that another program put there
        return None
