"""Text generation: encode prompts, run the model token by token, sample, decode."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from airllm.engine.continuation import Continuation, TrainedContext, statistics_of
from airllm.engine.drafts.speculation import Speculation, Speculator
from airllm.engine.embedding import NoGeneration
from airllm.engine.model import Model
from airllm.engine.request import Request, Statistics
from airllm.engine.scheduling.batch import Batch
from airllm.engine.scheduling.requests import Limits
from airllm.engine.scheduling.scheduler import Scheduler
from airllm.extras import require_extra
from airllm.memory.kv_cache import Cache, ContextFull, token_id
from airllm.text.open_tokenizer import open_tokenizer
from airllm.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]

_ROWS = 64  # sequences of a batch that run together, if a native call does not take fewer at once


# ------------------------------------------------------------------------------------------------ prompts


def is_batch(prompt: Any) -> bool:
    """Whether `prompt` is a list of prompts. A text or a list of token ids is one prompt."""
    if isinstance(prompt, str):
        return False
    if not isinstance(prompt, (Sequence, np.ndarray)) or isinstance(prompt, bytes):
        raise TypeError(f"prompt has type {type(prompt).__name__}, expected a str, or a list of them")
    return len(prompt) == 0 or isinstance(prompt[0], (str, Sequence, np.ndarray))


class PromptCache:
    """Keeps the keys and values of the last sequence, for the next one with the same beginning.

    One caller at a time holds the cache; a second caller meanwhile gets a new one.
    """

    def __init__(self, new_cache: Callable[[], Cache]):
        self._new = new_cache
        self._kept: Cache | None = None
        self._lock = threading.Lock()

    @contextmanager
    def take(self, tokens: list[int]) -> Iterator[Cache]:
        """A cache that holds the common prefix of `tokens` and the last sequence, but never the last token,
        since its logits are needed. After an interrupt, the cache keeps what was computed.
        """
        with self._lock:
            cache, self._kept = self._kept, None
        cache = cache or self._new()
        cache.truncate(_common_prefix(cache.tokens[: cache.length], tokens[:-1]))
        try:
            yield cache
        finally:
            cache.truncate(cache.length)
            self._kept = cache

    def clear(self) -> None:
        """Drop the cache."""
        self._kept = None


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


# ------------------------------------------------------------------------------------------------ generator


class TextGenerator:
    """Continues prompts: encodes them, runs the model token by token, decodes the tokens it chooses.

    `context` is the maximum length of a sequence in tokens. `new_cache` returns an empty cache. The keys and
    values of the last single prompt are kept for a next one with the same beginning. With a `speculation`,
    the next tokens of single prompts are drafted and verified. `statistics` describes the last text.
    """

    def __init__(
        self,
        model: Model,
        path: Path,
        context: int,
        new_cache: Callable[[], Cache],
    ):
        self._model: Model | None = model
        self.path, self.context = path, context
        self.new_cache = new_cache
        self.speculation: Speculation | None = None
        self._kept = PromptCache(new_cache)
        self.statistics: Statistics | None = None

    @property
    def model(self) -> Model:
        """The model. Raises RuntimeError after `close`."""
        self.require_open()
        assert self._model
        return self._model

    def require_open(self) -> None:
        """Raise RuntimeError after `close`."""
        if self.closed:
            raise RuntimeError(f"the engine of {self.path} is closed: open another one")

    @property
    def closed(self) -> bool:
        return self._model is None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, opened on first use."""
        with require_extra("models"):
            return open_tokenizer(self.path, self.model.config.vocabulary)

    def stream(self, prompt: Prompt, request: Request, name: str = "prompt") -> Iterator[str]:
        """Yield the text after a prompt in pieces, each as soon as it is final.

        Errors are raised by this call, not by the first piece. `name` denotes the prompt in their messages.
        """
        self.require_open()
        request.sampling.require_known_tokens(len(self.tokenizer))
        return self._pieces(self._encode_prompt(prompt, name), request)

    def batch(self, prompts: Sequence[Prompt], request: Request) -> list[str]:
        """The text after each prompt. Sequences share each pass over the weights; each ends on its own."""
        request.sampling.require_known_tokens(len(self.tokenizer))
        encoded = [self._encode_prompt(prompt, f"prompt {i}") for i, prompt in enumerate(prompts)]
        if not encoded:
            return []
        rows = self.model.fused.most_rows if self.model.residency.whole else 0
        limits = Limits(rows or _ROWS, len(encoded), piece_seconds=math.inf)
        batch = Batch(self.scheduler(limits, time.perf_counter), encoded, request)
        try:
            return batch.run()
        finally:
            self.statistics = batch.statistics

    def scheduler(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> Scheduler:
        """A scheduler of sequences. A memory budget is for its sequences then: the last one is dropped."""
        if self.model.residency.cache_bytes is not None:
            self.forget()
        return Scheduler(self, limits, clock)

    def close(self) -> None:
        """Close the model's file and drop the last sequence."""
        if self._model is not None:
            self._model.close()
        if self.speculation:
            self.speculation.close()
        self._model = None
        self.forget()

    def forget(self) -> None:
        """Drop the last sequence."""
        self._kept.clear()

    def _encode_prompt(self, prompt: Prompt, name: str) -> list[int]:
        """Token ids of a prompt. Raises what `check_tokens` raises."""
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        else:
            tokens = [token_id(token, name) for token in prompt]
        self.check_tokens(tokens, name)
        return tokens

    def check_tokens(self, tokens: Sequence[int], name: str) -> None:
        """Raise ValueError for no tokens or an unknown id, ContextFull for too many. `name` denotes the
        prompt in the message.
        """
        if not self.model.config.generates:
            raise NoGeneration(str(self.path), self.model.config.encoding is not None)
        if not tokens:
            raise ValueError(f"{name} has no tokens, expected one or more: this model begins without any")
        vocabulary = len(self.tokenizer)
        if not 0 <= min(tokens) <= max(tokens) < vocabulary:
            wrong = next(token for token in tokens if not 0 <= token < vocabulary)
            raise ValueError(f"{name} has token {wrong}, expected 0 to {vocabulary - 1}")
        if len(tokens) > self.context:
            expected = f"at most {self.context}: the context of this engine (context=)"
            raise ContextFull(f"{name} has {len(tokens)} tokens, expected {expected}")

    def _pieces(self, tokens: list[int], request: Request) -> Iterator[str]:
        drafts = self.speculation.begin(tokens) if self.speculation else nullcontext()
        with self._kept.take(tokens) as cache, drafts as speculator:
            sequence = Continuation(self.tokenizer, tokens, request, cache.capacity)
            sequence.cached_tokens = cache.length
            with closing(self._rounds([sequence], [cache], request, speculator)) as pieces:
                yield from (piece for (piece,) in pieces if piece)

    def _rounds(
        self,
        sequences: list[Continuation],
        caches: list[Cache],
        request: Request,
        speculator: Speculator | None = None,
    ) -> Generator[list[str], None, None]:
        """Yield the text that each pass through the layers adds to each sequence. A `speculator` drafts for
        the only one.

        Sets `statistics` at the end, also after an error. Time that the caller spends between passes is not
        counted.
        """
        seconds = first = 0.0
        trained = self.model.config.trained_context
        watch = TrainedContext(trained) if self.context > trained else None
        try:
            while going := [pair for pair in zip(sequences, caches, strict=True) if not pair[0].reason]:
                start = time.perf_counter()
                try:
                    if watch:
                        watch.see(max(len(sequence.tokens) for sequence, _ in going))
                    if speculator:
                        self._drafted_pass(*going[0], request, speculator)
                    else:
                        self._pass(going, request)
                finally:
                    seconds += time.perf_counter() - start
                first = first or seconds
                yield [sequence.read() for sequence in sequences]
        finally:
            self.statistics = statistics_of(sequences, first or seconds, seconds)

    def _pass(self, going: list[tuple[Continuation, Cache]], request: Request) -> None:
        """Each sequence gets a token, all of them by one pass."""
        pending, caches = (
            [each.tokens[cache.length :] for each, cache in going],
            [cache for _, cache in going],
        )
        results = self.model.run(pending, caches, on_progress=request.on_prompt)
        for (sequence, _), logits in zip(going, results, strict=True):
            sequence.take(logits)

    def _drafted_pass(
        self, sequence: Continuation, cache: Cache, request: Request, speculator: Speculator
    ) -> None:
        """The sequence gets a token and all drafted ones that are right."""
        pending = sequence.tokens[cache.length :]
        follows = len(pending) == 1  # it is not the prompt

        def most() -> int:
            return min(self.model.most_drafted(cache), sequence.room - 1)

        sequence.draft = draft = speculator.propose(most) if follows else []
        start = time.perf_counter()
        if draft:
            logits = list(self.model.verify([*pending, *draft], cache))
        else:
            logits = self.model.run([pending], [cache], on_progress=request.on_prompt)
        seconds = time.perf_counter() - start
        chosen = sequence.take_drafted(logits, cache)
        if follows:
            speculator.observe(chosen, len(draft), seconds)
        else:
            speculator.follow(chosen)
