"""A sequence that a scheduler serves."""

from __future__ import annotations

import numpy as np

from airllm.engine.continuation import Continuation
from airllm.engine.request import Statistics
from airllm.engine.sampling import TokenLogprob, log_probabilities
from airllm.engine.scheduling.pace import STEP
from airllm.engine.scheduling.prefixes import Entry, Key
from airllm.engine.scheduling.requests import ERROR, Event, SequenceRequest
from airllm.memory.kv_cache import Cache

_SCORED = 64  # tokens of a piece whose logits are all needed, which take much memory
ONE = 1  # the length that selects the kernels of generated tokens


class Sequence:
    """A request on its way. `text` has its tokens. The first `base` of them meet the kernels for a prompt of
    that length, the others those for generated tokens. `entry` has its keys and values while it is active,
    and memory is reserved for `reserved` tokens.
    """

    def __init__(self, id: int, asked: SequenceRequest, text: Continuation, now: float):
        self.id, self.asked, self.text = id, asked, text
        self.base = len(asked.tokens)
        self.entry: Entry | None = None
        self.reserved = 0
        self.error: Exception | None = None
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        if asked.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self._added, self._first = now, 0.0
        self._told = 0  # tokens that events had

    @property
    def active_entry(self) -> Entry:
        """Its entry, while it is active."""
        assert self.entry
        return self.entry

    @property
    def cache(self) -> Cache:
        """Its keys and values, while it is active."""
        return self.active_entry.cache

    @property
    def kernels_for(self) -> int:
        """The length that selects the kernels of its next token."""
        return self.base if self.computed < self.base else ONE

    def start_over(self, key: Key) -> None:
        """Compute all tokens again, as one prompt."""
        self.base = len(self.text.tokens)
        self.cache.truncate(0)
        self.active_entry.key = key

    @property
    def computed(self) -> int:
        """How many tokens have keys and values."""
        return self.entry.cache.length if self.entry else 0

    @property
    def decodes(self) -> bool:
        """Whether its next pass computes one generated token."""
        return self.base <= self.computed == len(self.text.tokens) - 1

    def piece(self, most: int, most_generated: int) -> list[int]:
        """Its next tokens, at most `most`. A piece of a prompt ends at its end, or at a multiple of `STEP`.
        Of tokens that were generated before the sequence was preempted, it has at most `most_generated`.
        """
        start, tokens = self.computed, self.text.tokens
        if start >= self.base:
            return tokens[start : start + min(most, most_generated)]
        if self.scores_prompt:
            return tokens[start : min(start + min(most, _SCORED), self.base - 1)]
        stop = (start + most) // STEP * STEP
        return tokens[start : min(stop if stop > start else start + most, self.base)]

    @property
    def scores_prompt(self) -> bool:
        """Whether its next piece needs the logits of all positions, for their log probabilities. The last
        token of the prompt is a piece of its own, so that the text does not depend on this.
        """
        return self.prompt_logprobs is not None and self.computed < self.base - 1

    def score_prompt(self, logits: np.ndarray) -> None:
        """Append the log probabilities of tokens, by the logits (tokens, vocabulary) of the last piece. An
        error ends this sequence.
        """
        assert self.prompt_logprobs is not None
        first = self.computed - len(logits) + 1
        for row, token in zip(logits, self.text.tokens[first : self.computed + 1], strict=True):
            try:
                self.prompt_logprobs.append(log_probabilities(row, token, self.asked.prompt_logprobs or 0))
            except Exception as error:
                return self.fail(error)

    def wait(self) -> None:
        """It is preempted: all of its tokens must be computed again."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    def report(self) -> None:
        """Report how much of the prompt is computed."""
        if self.asked.request.on_prompt:
            self.asked.request.on_prompt(self.computed, len(self.text.tokens))

    def take(self, logits: np.ndarray, now: float) -> None:
        """Sample the next token. An error ends this sequence."""
        try:
            token = self.text.take(logits)
            if self.asked.logprobs is not None:
                self.logprobs.append(log_probabilities(logits, token, self.asked.logprobs))
        except Exception as error:
            self.fail(error)
        self._first = self._first or now

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self.error = error
        self.text.end(ERROR)

    def event(self, now: float) -> Event:
        """What happened since the last event."""
        count = self.text.new_tokens - self._told
        self._told = self.text.new_tokens
        logprobs, self.logprobs = self.logprobs, []
        of_prompt = self.prompt_logprobs if count else None
        if count:
            self.prompt_logprobs = None
        return Event(
            self.id,
            self.text.read(),
            self.text.tokens[len(self.text.tokens) - count :],
            logprobs,
            of_prompt,
            self.text.reason,
            self.error,
            self.statistics(now),
        )

    def statistics(self, now: float) -> Statistics:
        """Counts and times since the request was added."""
        text = self.text
        return Statistics(
            prompt_tokens=text.prompt_tokens,
            cached_tokens=text.cached_tokens,
            new_tokens=text.new_tokens,
            seconds_to_first_token=(self._first or now) - self._added,
            seconds=now - self._added,
            reasons=(text.reason,),
        )
