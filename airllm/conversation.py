"""A conversation on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from airllm.layer_engine import LayerWiseInferenceEngine

Message = dict[str, str]
HELP = "/clear begins again, /exit or Ctrl-D leaves, Ctrl-C interrupts an answer"


def converse(
    engine: LayerWiseInferenceEngine,
    system: str | None,
    answer: Callable[[list[Message]], Iterator[str]],
    after: Callable[[], None],
) -> None:
    """Read lines and answer them until the end of input. What was said stays, so that it is answered to."""
    from airllm.cli import Refused, show

    first: list[Message] = [{"role": "system", "content": system}] if system else []
    messages = list(first)
    if sys.stdin.isatty():
        print(HELP, file=sys.stderr)
    for line in _lines():
        if line in ("/exit", "/quit"):
            return
        if line == "/clear":
            messages = list(first)
        elif line.startswith("/"):
            print(HELP, file=sys.stderr)
        elif line:
            said = Kept(messages + [{"role": "user", "content": line}], answer)
            try:
                show(said.pieces())
            except ValueError as error:  # too long for the context, or what the template does not take
                if len(messages) == len(first):
                    raise Refused(str(error)) from error
                print(f"airllm: {error} (/clear begins again)", file=sys.stderr)
                continue
            print(flush=True)
            after()
            messages = said.messages


class Kept:
    """A conversation with an answer that grows as it is read, however much of it that will be."""

    def __init__(self, messages: list[Message], answer: Callable[[list[Message]], Iterator[str]]):
        self._asked, self._answer, self._text = messages, answer, ""

    def pieces(self) -> Iterator[str]:
        with contextlib.closing(self._answer(self._asked)) as pieces:  # type: ignore[type-var]
            for piece in pieces:
                self._text += piece
                yield piece

    @property
    def messages(self) -> list[Message]:
        return [*self._asked, {"role": "assistant", "content": self._text}]


def _lines() -> Iterator[str]:
    """What the user types. Ctrl-C takes a line back."""
    terminal = sys.stdin.isatty()
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  lines that can be edited
    while True:
        try:
            yield input("> " if terminal else "").strip()
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except EOFError:
            return
