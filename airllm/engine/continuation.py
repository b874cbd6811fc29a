"""A sequence that grows: its sampler, its text, and why it ended."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence

import numpy as np

from airllm.engine.constraint import Constraint
from airllm.engine.request import CONTEXT, END, INTERRUPTED, LENGTH, STOP, Request, Statistics
from airllm.engine.sampling import Sampler
from airllm.memory.kv_cache import Cache
from airllm.text.stop_strings import StopStrings
from airllm.text.tokenizer import Tokenizer


class BeyondTraining(UserWarning):
    """A text became longer than the model was trained for."""


class Continuation:
    """A sequence that grows. `tokens` are its prompt and all that were chosen, `draft` are guesses of those
    that come next. `take` samples a token from logits, `read` returns the text that is final since the
    last call. `reason` is set when the text ends. `capacity`: the most tokens that go through the layers.
    `constraint` restricts the tokens; None for what the request asks for.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        request: Request,
        capacity: int,
        constraint: Constraint | None = None,
    ):
        self.tokens, self.wanted, self.prompt_tokens = list(prompt), request, len(prompt)
        self.draft: list[int] = []
        self.cached_tokens = self.new_tokens = self.drafted = self.accepted = 0
        self.reason = self._text = ""
        self._capacity = capacity
        self._ends = tokenizer.stop_ids
        self._sampler = Sampler(request.sampling, prompt)
        if constraint is None and request.new_constraint is not None:
            constraint = request.new_constraint()
        self._constraint = constraint
        self._decoder = tokenizer.decoder(request.shown_tokens)
        self._stops = StopStrings(request.stop)

    @property
    def room(self) -> int:
        """How many more tokens may come."""
        most = self.wanted.max_new_tokens
        return self._capacity if most is None else most - self.new_tokens

    def take(self, logits: np.ndarray) -> int:
        """Sample a token from logits (vocabulary)."""
        token = self._choose(logits)
        self.tokens.append(token)
        self.new_tokens += 1
        self._text += self._add(token)
        return token

    def _choose(self, logits: np.ndarray) -> int:
        if self._constraint is None:
            return self._sampler.next(logits)
        token = self._sampler.next(logits, self._constraint.mask())
        self._constraint.accept(token)
        return token

    def take_drafted(self, logits: Sequence[np.ndarray], cache: Cache) -> list[int]:
        """Sample a token from each of 1 + drafted rows of logits, as long as it is the drafted one: the next
        row holds for no other. The cache keeps the tokens that it would have without drafts.
        """
        if self.draft:
            cache.truncate(cache.length - len(self.draft))
        chosen = [self.take(logits[0])]
        for guess, row in zip(self.draft, logits[1:], strict=True):
            if chosen[-1] != guess or self.reason:
                break
            cache.extend([guess])  # its keys and values are in place
            chosen.append(self.take(row))
        self.drafted += len(self.draft)
        self.accepted += sum(map(operator.eq, chosen, self.draft))
        return chosen

    def read(self) -> str:
        """The text that is final since the last call."""
        text, self._text = self._text, ""
        return text

    def _add(self, token: int) -> str:
        """The text that is final after this token, which may end it."""
        if token in self._ends:
            return self._end(END)
        text = self._stops.add(self._decoder.add(token))
        if self._stops.found:
            self.reason = STOP
        elif self._constraint is not None and self._constraint.finished:
            return text + self._end(END)
        elif self.new_tokens == self.wanted.max_new_tokens:
            return text + self._end(LENGTH)
        elif len(self.tokens) > self._capacity:  # the last one does not go through the layers any more
            return text + self._end(CONTEXT)
        return text

    def end(self, reason: str) -> None:
        """End the text. What a stop string or a broken character held back becomes final."""
        self._text += self._end(reason)

    def _end(self, reason: str) -> str:
        self.reason = reason
        text = self._stops.add(self._decoder.finish())
        return text + self._stops.finish()


class TrainedContext:
    """Warns when a sequence becomes longer than `most`, once."""

    def __init__(self, most: int):
        self._most = most
        self._warned = False

    def see(self, longest: int) -> None:
        """Called with the length of the longest sequence before its last token goes through the layers."""
        if longest > self._most and not self._warned:
            self._warned = True
            found = f"the text has {longest} tokens now, and the model was made for at most {self._most}"
            warnings.warn(f"{found}: the text from here on may make no sense", BeyondTraining, 2)


def statistics_of(sequences: list[Continuation], first: float, seconds: float) -> Statistics:
    return Statistics(
        prompt_tokens=sum(each.prompt_tokens for each in sequences),
        cached_tokens=sum(each.cached_tokens for each in sequences),
        new_tokens=sum(each.new_tokens for each in sequences),
        seconds_to_first_token=first,
        seconds=seconds,
        reasons=tuple(each.reason or INTERRUPTED for each in sequences),
        drafted_tokens=sum(each.drafted for each in sequences),
        accepted_tokens=sum(each.accepted for each in sequences),
    )
