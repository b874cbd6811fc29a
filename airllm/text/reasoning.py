"""Splits the thoughts of a model from its answer, while the text is generated."""

from __future__ import annotations

from dataclasses import dataclass

from airllm.text.stop_strings import overlap_length


@dataclass(frozen=True)
class ReasoningTags:
    """What stands before and after thoughts."""

    begin: str
    end: str


_KNOWN = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("<seed:think>", "</seed:think>"),  # Seed-OSS
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ReasoningTags("<|channel>thought\n", "<channel|>"),  # Gemma 4
)


def tags_of(template: str) -> ReasoningTags | None:
    """The tags of a chat template's source; None for a model that does not think."""
    return next((tags for tags in _KNOWN if tags.end in template), None)


def is_thinking(prompt: str, tags: ReasoningTags) -> bool:
    """Whether a rendered prompt ends within thoughts, so that the text begins with them."""
    return prompt.rstrip().endswith(tags.begin.rstrip())


def has_thought(prompt: str, tags: ReasoningTags) -> bool:
    """Whether a rendered prompt ends after thoughts, so that the text has none: thinking is switched off."""
    return prompt.rstrip().endswith(tags.end)


class ReasoningReader:
    """Reads thoughts at the beginning of a text. White space around them is dropped.

    `thinking`: the text begins within the thoughts. The result depends only on the text, not on its pieces.
    """

    def __init__(self, tags: ReasoningTags, thinking: bool = False):
        self._tags = tags
        self._step = self._read_thoughts if thinking else self._read_beginning
        self._buffer = self._spaces = ""
        self._thought = False  # something but white space was thought

    def read(self, text: str, is_last: bool = False) -> tuple[str, str]:
        """The thoughts and the answer that are final after this piece."""
        self._buffer += text
        thoughts = answer = ""
        while (found := self._step(is_last)) is not None:
            thoughts, answer = thoughts + found[0], answer + found[1]
        return thoughts, answer

    # Each step returns thoughts and answer, or None if it needs more text.

    def _read_beginning(self, is_last: bool) -> tuple[str, str] | None:
        begun, begin = self._buffer.lstrip(), self._tags.begin
        if begun.startswith(begin):
            self._buffer = begun[len(begin) :]
            self._step = self._read_thoughts
            return "", ""
        if begin.startswith(begun) and not is_last:
            return None
        self._step = self._read_answer
        return "", ""

    def _read_thoughts(self, is_last: bool) -> tuple[str, str] | None:
        at = self._buffer.find(self._tags.end)
        if at >= 0:
            thoughts = self._pass_on(at)
            self._buffer = self._buffer[len(self._tags.end) :]
            self._step = self._read_gap
            return thoughts, ""
        held = 0 if is_last else overlap_length(self._buffer, self._tags.end)
        thoughts = self._pass_on(len(self._buffer) - held)
        return (thoughts, "") if thoughts else None

    def _pass_on(self, count: int) -> str:
        """Thoughts without white space at their beginning and end."""
        text, self._buffer = self._spaces + self._buffer[:count], self._buffer[count:]
        if not self._thought:
            text = text.lstrip()
        kept = text.rstrip()
        self._spaces = text[len(kept) :]
        self._thought = self._thought or bool(kept)
        return kept

    def _read_gap(self, is_last: bool) -> tuple[str, str] | None:
        """White space between thoughts and answer."""
        self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return None
        self._step = self._read_answer
        return "", ""

    def _read_answer(self, is_last: bool) -> tuple[str, str] | None:
        answer, self._buffer = self._buffer, ""
        return ("", answer) if answer else None
