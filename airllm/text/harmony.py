"""Harmony: the form in which gpt-oss answers, in messages with channels.

    <|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>the answer

A message of the channel commentary for `functions.NAME` calls that tool; its text has the arguments. Text
that does not begin like a message is the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from airllm.text.stop_strings import overlap_length
from airllm.text.tools.grammar import AnswerForm, control_tokens
from airllm.text.tools.reader import CallDelta, Delta
from airllm.text.vocabulary import Vocabulary

CHANNEL, MESSAGE, START, END = "<|channel|>", "<|message|>", "<|start|>", "<|end|>"
CALL, RETURN, CONSTRAIN = "<|call|>", "<|return|>", "<|constrain|>"
MARKERS = (CHANNEL, MESSAGE, START, END, CALL, RETURN, CONSTRAIN)
_ENDS = re.compile("|".join(map(re.escape, (END, CALL, RETURN, START, CHANNEL))))
_BEGINNINGS = (CHANNEL, START, " to=")
_CHANNEL_OF = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"to=([\w.-]+)")
_BETWEEN = "\n\n"  # messages of the same kind


def uses_harmony(template: str, vocabulary: Vocabulary) -> bool:
    """Whether a chat template's source writes such messages, and their markers are control tokens."""
    writes = all(marker in template for marker in (CHANNEL, MESSAGE, START))
    return writes and len(control_tokens(MARKERS, vocabulary)) == len(MARKERS)


class HarmonyReader:
    """Reads the thoughts, the text and the calls of an answer, piece by piece. The result depends only on the
    whole text. Thoughts are messages of the channel analysis, and those to tools other than functions.
    """

    def __init__(self, new_id: Callable[[], str]):
        self.calls = 0
        self._new_id = new_id
        self._buffer = self._kind = ""
        self._seen: set[str] = set()  # kinds that have text
        self._step: Callable[[bool], bool] = self._read_beginning

    def read(self, text: str, is_last: bool = False) -> Delta:
        """What is final after this piece."""
        self._buffer += text
        self._found = {"final": "", "analysis": ""}
        self._deltas: list[CallDelta] = []
        while self._step(is_last):
            pass
        return Delta(self._found["final"], self._found["analysis"], tuple(self._deltas))

    # Each step reads from the buffer and returns whether another step can follow at once.

    def _read_beginning(self, is_last: bool) -> bool:
        if any(self._buffer.startswith(each) for each in _BEGINNINGS):
            self._step = self._read_header
            return True
        if not is_last and any(each.startswith(self._buffer) for each in _BEGINNINGS):
            return False
        self._begin("final")
        return True

    def _read_header(self, is_last: bool) -> bool:
        """What precedes the text of a message. A header that is cut off says nothing."""
        header, found, rest = self._buffer.partition(MESSAGE)
        if not found:
            return False
        self._buffer = rest
        channel, to = _CHANNEL_OF.search(header), _RECIPIENT.search(header)
        if to and to[1].startswith("functions."):
            self._begin("call")
            name = to[1].removeprefix("functions.")
            self._deltas.append(CallDelta(self.calls, "", self._new_id(), name))
            self.calls += 1
        else:
            self._begin("analysis" if to or (channel and channel[1] == "analysis") else "final")
        return True

    def _begin(self, kind: str) -> None:
        self._kind, self._step = kind, self._read_text
        self._between = _BETWEEN if kind in self._seen else ""

    def _read_text(self, is_last: bool) -> bool:
        end = _ENDS.search(self._buffer)
        held = 0 if is_last or end else max(overlap_length(self._buffer, each) for each in MARKERS)
        at = end.start() if end else len(self._buffer) - held
        self._add(self._buffer[:at])
        self._buffer = self._buffer[at:]
        if end:
            self._buffer = self._buffer.removeprefix(END).removeprefix(CALL).removeprefix(RETURN)
            self._step = self._read_header
        return bool(end)

    def _add(self, text: str) -> None:
        if not text:
            return
        if self._kind == "call":
            self._deltas.append(CallDelta(self.calls - 1, text))
            return
        self._seen.add(self._kind)
        self._found[self._kind] += self._between + text
        self._between = ""


def harmony_grammar(form: AnswerForm, control: Mapping[str, int]) -> str:
    """The grammar of a form that is not free: thoughts, then a call of a tool or the final message."""

    def token(marker: str) -> str:
        return f"<[{control[marker]}]>"

    text = "/(?s:.*)/"
    next_message = f'{token(END)} {token(START)} "assistant"'
    rules = [
        f'thoughts: {token(CHANNEL)} "analysis" {token(MESSAGE)} {text} {next_message}',
        f'final: {token(CHANNEL)} "final" {token(MESSAGE)} {_json(form.json) if form.json else text}',
    ]
    calls = [f"call_{i}" for i in range(len(form.calls))]
    for rule, (name, document) in zip(calls, form.calls, strict=True):
        assert isinstance(document, Mapping)
        to = f" to=functions.{name}"  # the recipient follows the channel, or the role
        channel = f"{token(CHANNEL)} {json.dumps(f'commentary{to} ')}"
        role = f'{json.dumps(to)} {token(CHANNEL)} "commentary "'
        rules.append(
            f'{rule}: ({channel} | {role}) {token(CONSTRAIN)}? "json" {token(MESSAGE)} {_json(document)}'
        )
    options = [*([] if form.required else ["final"]), *calls]
    return "\n".join(["start: thoughts? answer", f"answer: {' | '.join(options)}", *rules])


def _json(document: Mapping[str, object]) -> str:
    return f"%json {json.dumps(document)}"
