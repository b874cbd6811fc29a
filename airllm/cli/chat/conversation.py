"""The messages of a conversation, and the next answer."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from airllm.cli import answer_printer
from airllm.cli.terminal import show
from airllm.engine.engine import LayerWiseInferenceEngine
from airllm.engine.request import INTERRUPTED
from airllm.progress import Waiting

Message = dict[str, Any]


class Talk:
    """A conversation. `settings` are options of `stream_chat`. Raises ValueError if a question cannot be
    answered; earlier messages are kept.
    """

    def __init__(
        self,
        engine: LayerWiseInferenceEngine,
        system: str | None,
        settings: dict[str, Any],
        quiet: bool = False,
    ):
        self.engine, self.settings, self.quiet = engine, dict(settings), quiet
        self.messages: list[Message] = []
        self.system = system

    @property
    def system(self) -> str | None:
        """The system prompt, or None."""
        first = self.messages[0] if self.messages else {"role": ""}
        return first["content"] if first["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        turns = self.messages[self.system is not None :]
        self.messages = [{"role": "system", "content": text}, *turns] if text else turns

    def say(self, text: str) -> None:
        """Print a message to the user on stderr."""
        print(text, file=sys.stderr)

    def note(self, text: str) -> None:
        """`say`, unless quiet."""
        if not self.quiet:
            self.say(text)

    def ask(self, question: str) -> None:
        """Answer, and keep question and answer. If the context is full, drop the oldest turns."""
        asked: list[Message] = [*self.messages, {"role": "user", "content": question}]
        fits = [dict(each) for each in self.engine.fitting(asked, self.settings.get("max_new_tokens", 512))]
        wait = Waiting("Reading the prompt", self.quiet)
        stream = self.engine.stream_chat(fits, on_prompt=wait.advance, **self.settings)
        if left := len(asked) - len(fits):
            full = f"the context of {self.engine.context} tokens is full"
            self.say(f"[{full}: the {left} oldest messages are left out]")
        answer = _Kept(stream)
        show(answer.pieces(), wait)
        print(flush=True)
        done = self.engine.statistics
        if not answer.text and done and done.reason == INTERRUPTED:
            self.note("[there is no answer: the question is removed]")
            return
        self.messages = [*fits, {"role": "assistant", "content": answer.text}]
        self.note(answer_printer.summary_line(self.engine))

    def retry(self) -> None:
        """Answer the last question again."""
        before = self.messages
        question = self.undo()
        without = self.messages
        try:
            self.ask(question)
        finally:
            if self.messages is without:  # there was no answer
                self.messages = before

    def undo(self) -> str:
        """Remove the last question and its answer; return the question."""
        places = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not places:
            raise ValueError("nothing was asked yet")
        question = self.messages[places[-1]]["content"]
        self.messages = self.messages[: places[-1]]
        return question

    def clear(self) -> None:
        """Remove all messages but the system prompt."""
        self.messages = self.messages[: self.system is not None]

    def replace(self, messages: Sequence[Message]) -> None:
        """Continue from another conversation."""
        self.messages = [dict(message) for message in messages]


class _Kept:
    """An answer whose text is kept as it is read, even if it is interrupted."""

    def __init__(self, stream: Iterator[str]):
        self._stream = stream
        self.text = ""

    def pieces(self) -> Iterator[str]:
        with contextlib.closing(self._stream) as pieces:  # type: ignore[type-var]
            for piece in pieces:
                self.text += piece
                yield piece
