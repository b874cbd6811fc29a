"""A draft model: a smaller model with the same tokenizer, which guesses what the larger one will say."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from statistics import median_low
from typing import Any

from airllm.engine.drafts.drafter import Kind
from airllm.engine.model import Model
from airllm.memory.budget import CHUNK, MemoryBudgetError
from airllm.memory.kv_cache import Cache
from airllm.text.tokenizer import Tokenizer

KIND = Kind("draft model", 0.7)
CACHE_DTYPE = "f16"  # its keys and values are few, and the precision of a guess does not matter
_LAST = 5  # proposals whose median is the time of a guess
_SHOWN = 3  # differences of vocabularies that an error lists

clock = time.perf_counter


class DraftModel:
    """A model that drafts for an engine.

    `take(tokens)` lends a cache for a sequence that begins with these tokens: `PromptCache.take`. Ids below
    `vocabulary` mean the same to both models. A guess is expected to take `share` of the time of the
    engine's model, until it was measured.
    """

    def __init__(
        self,
        model: Model,
        take: Callable[[list[int]], AbstractContextManager[Cache]],
        vocabulary: int,
        share: float,
    ):
        self.model, self.vocabulary = model, vocabulary
        self._take, self._share = take, share
        self._seconds: deque[float] = deque(maxlen=_LAST)

    @contextmanager
    def drafter(self, tokens: list[int]) -> Iterator[ModelDrafter]:
        """A drafter for a sequence that begins with `tokens`."""
        with self._take(tokens) as cache:
            yield ModelDrafter(self, cache, tokens)

    def seconds_per_token(self, single: float) -> float:
        """The median of the last times of a guess; a share of `single` before the first."""
        return median_low(self._seconds) if self._seconds else self._share * single

    def add_time(self, seconds_per_token: float) -> None:
        """A guess took so long."""
        self._seconds.append(seconds_per_token)

    def close(self) -> None:
        """Close the model's file."""
        self.model.close()


class ModelDrafter:
    """Guesses the likeliest tokens of a draft model, whose cache follows the sequence: see `Drafter`."""

    free = False

    def __init__(self, draft: DraftModel, cache: Cache, tokens: list[int]):
        self.seconds = 0.0
        self._draft, self._cache = draft, cache
        self._tokens: list[int] = []
        self._follows = self._knows(tokens)
        self._is_first = True
        self._tokens += tokens

    def seconds_per_token(self, single: float) -> float:
        return self._draft.seconds_per_token(single)

    def kinds(self, most: int) -> Sequence[Kind]:
        room = self._cache.capacity - len(self._tokens) + 1  # the last guess is not run
        return (KIND,) * min(most, room) if self._follows else ()

    def propose(self, count: int) -> list[int]:
        start = clock()
        pending = self._tokens[self._cache.length :]
        behind = len(pending) > 2  # after a call whose drafts were all right, it is two tokens behind
        if behind:
            self._run(pending[:-1])
            pending = pending[-1:]
        if self._is_first:  # the prompt is computed by both models, whether or not drafts pay later
            start, self._is_first = clock(), False
        guess: list[int] = []
        for _ in range(count):
            pending = [self._run(pending)]
            guess += pending
        self.seconds = clock() - start
        if not behind:
            self._draft.add_time(self.seconds / count)
        return guess

    def observe(self, tokens: Sequence[int]) -> None:
        cache = self._cache
        for at, token in enumerate(tokens, len(self._tokens)):
            if at < cache.length and cache.tokens[at] != token:
                cache.truncate(at)
        self._follows = self._follows and self._knows(tokens)
        self._tokens += tokens
        cache.truncate(min(cache.length, len(self._tokens) - 1))

    def _knows(self, tokens: Sequence[int]) -> bool:
        return max(tokens, default=0) < self._draft.vocabulary

    def _run(self, tokens: list[int]) -> int:
        """The likeliest token after these."""
        (logits,) = self._draft.model.run([tokens], [self._cache])
        return int(logits[: self._draft.vocabulary].argmax())


def open_draft_model(path: str | PathLike[str], ops: Any, fallback_backends: Sequence[str] = ()) -> Model:
    """Open a draft model on the ops of a backend. All of it stays in memory."""
    return Model(path, ops, cache_dtype=CACHE_DTYPE, fallback_backends=fallback_backends)


def reserve_memory(draft: Model, limit: int | None) -> int | None:
    """What an opened draft model leaves of `limit` bytes; None if there is no limit. Raises
    MemoryBudgetError if it leaves nothing.
    """
    if limit is None:
        return None
    needed = draft.memory_estimate(draft.residency.context, CACHE_DTYPE, CHUNK).total_bytes
    if needed >= limit:
        found = f"max_memory is {limit} bytes, expected more than the {needed} of the draft model"
        raise MemoryBudgetError(f"{found} {draft.weights.path}")
    return limit - needed


def shared_vocabulary(ours: Tokenizer, others: Tokenizer, path: Path) -> int:
    """The number of ids that mean the same to both tokenizers: all of the one that has fewer.

    Raises ValueError that names ids with different tokens, and the draft model's `path`.
    """
    a, b = ours.vocabulary, others.vocabulary
    count = min(len(a), len(b))
    if a.letters == b.letters and a.texts[:count] == b.texts[:count]:
        return count
    differ = [i for i in range(count) if a.texts[i] != b.texts[i] and a.piece(i) != b.piece(i)]
    if not differ:
        return count
    shown = ", ".join(f"token {i} is {b.piece(i)!r}, not {a.piece(i)!r}" for i in differ[:_SHOWN])
    expected = f"a model with the same tokenizer: {len(differ)} of {count} tokens differ ({shown})"
    raise ValueError(f"draft_model has value {str(path)!r}, expected {expected}")
