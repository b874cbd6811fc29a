"""Print answers on a terminal as they are generated, and the error for requests that cannot be met."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from airllm.progress import Waiting

_FENCE = "```"
_LOOK = 40  # characters of a line that are searched for a fence


class Refused(Exception):
    """A request of the user that cannot be met; only the message is shown."""


def show(pieces: Iterator[str], wait: Waiting | None = None) -> bool:
    """Print text as it arrives; return whether Ctrl-C stopped it. `wait` is shown until the first piece."""
    text = Wrapped(sys.stdout) if sys.stdout.isatty() else _Plain(sys.stdout)
    with contextlib.closing(pieces):  # type: ignore[type-var]
        try:
            with wait or contextlib.nullcontext():
                text.add(next(pieces, ""))
            for piece in pieces:
                text.add(piece)
        except KeyboardInterrupt:
            return True
        finally:
            text.finish()
    return False


class _Plain:
    """Unchanged text."""

    def __init__(self, out: TextIO):
        self._out = out

    def add(self, text: str) -> None:
        print(text, end="", file=self._out, flush=True)

    def finish(self) -> None:
        pass


class Wrapped:
    """Text wrapped at words: a word is printed once it is complete.

    The terminal wraps fenced code and words longer than a line.
    """

    def __init__(self, out: TextIO, columns: Callable[[], int] | None = None):
        self._out = out
        self._columns = columns or (lambda: shutil.get_terminal_size().columns)
        self._word = self._space = self._line = ""
        self._at, self._code = 0, False

    def add(self, text: str) -> None:
        for letter in text.replace("\r", ""):
            self._take("\ufffd" if _is_control(letter) else letter)
        self._out.flush()

    def finish(self) -> None:
        """Print the last word at the end of the text."""
        self._put_word()
        self._out.write(self._space)
        self._space = ""
        self._out.flush()

    def _take(self, letter: str) -> None:
        if letter == "\n":
            self._end_line()
            return
        if self._code or self._is_fence():
            self._put_word()
            self._out.write(self._space + letter)
            self._space = ""
        elif letter.isspace():
            self._put_word()
            self._space += letter
        else:
            if _width(letter) > 1:  # scripts with wide characters have no spaces between words
                self._put_word()
            self._word += letter
        self._line = (self._line + letter)[:_LOOK]

    def _is_fence(self) -> bool:
        return self._line.lstrip().startswith(_FENCE)

    def _end_line(self) -> None:
        self._put_word()
        if self._is_fence():
            self._code = not self._code
        self._out.write(self._space + "\n")
        self._line = self._space = ""
        self._at = 0

    def _put_word(self) -> None:
        if not self._word:
            return
        width = sum(map(_width, self._word))
        room = self._columns() - self._at
        if self._at and len(self._space) + width > room and width <= self._columns():
            self._out.write("\n")
            self._at = 0
        else:
            self._out.write(self._space)
            self._at += len(self._space)
        self._out.write(self._word)
        self._at += width
        if self._at > self._columns():  # the terminal has wrapped a word longer than a line
            self._at %= self._columns()
        self._word = self._space = ""


def _is_control(letter: str) -> bool:
    """Whether a terminal might interpret the character: a model must not control it."""
    return letter not in "\n\t" and (letter < " " or "\x7f" <= letter <= "\x9f")


def _width(letter: str) -> int:
    """Columns that a character takes on a terminal."""
    if letter.isascii():
        return 1
    from prompt_toolkit.utils import get_cwidth

    return get_cwidth(letter)
