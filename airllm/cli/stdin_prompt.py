"""What is piped to stdin, as the prompt or behind it."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from collections.abc import Iterator

from airllm.cli.terminal import Refused

_PATIENCE = 3.0  # seconds until it is said that stdin is waited for


def with_stdin(prompt: str | None) -> str:
    """The prompt, and after an empty line what stdin has; of `None` or "-" stdin alone.

    Beside a prompt stdin is read only if it is a pipe or a file: a terminal, or the nothing that cron has
    there, would have to be waited for.
    """
    if prompt is None or prompt == "-":
        text = read()
        if not text.strip():
            raise Refused("there is no prompt: give one, or pipe a text to stdin")
        return text
    text = read() if _is_piped() else ""
    return f"{prompt}\n\n{text}" if text.strip() else prompt


def read() -> str:
    """All of stdin. Refused if it is no text."""
    if sys.stdin is None:  # closed before this process began
        return ""
    _say_what_is_waited_for()
    with only_text():
        return sys.stdin.read()


@contextlib.contextmanager
def only_text() -> Iterator[None]:
    """What is read of stdin in here is text, or it is Refused."""
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="strict")  # in some locales wrong bytes pass
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
    """A terminal's user, or a pipe that somebody holds open, may not know."""
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
    except (AttributeError, OSError, ValueError):  # none, or an object of a program that runs this one
        return None
