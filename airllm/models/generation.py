"""Generating text: prompts in, tokens chosen one after the other, text out."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypedDict

import numpy as np

from airllm.architectures.config import ModelConfig
from airllm.models.cache import Cache, ContextFull, token_id
from airllm.models.sampling import Sampler, Sampling
from airllm.models.stop_strings import StopStrings
from airllm.models.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Done = Callable[["Statistics"], None]
OnPrompt = Callable[[int, int], None]


class Options(TypedDict, total=False):
    """What `generate` knows besides the prompt and `max_new_tokens`, for those that hand it on."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None
    stop: str | Sequence[str]
    on_prompt: OnPrompt | None


# Why a text ended.
END, STOP, LENGTH, CONTEXT, INTERRUPTED = "end", "stop", "length", "context", "interrupted"


class BeyondTraining(UserWarning):
    """A text is longer than those that the model was made for."""


@dataclass(frozen=True)
class Statistics:
    """What a call of generate, stream or chat did; sums over its sequences.

    `cached_tokens` of the prompt were there from the call before. `new_tokens`: those the model chose, the
    one that ends a text too. `reasons`, one for each sequence: "end" (the model ended it), "stop" (a stop
    string), "length" (max_new_tokens), "context" (full), "interrupted" (Ctrl-C, or a stream not read out).
    """

    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    seconds_to_first_token: float
    seconds: float
    reasons: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Why the (first) text ended."""
        return self.reasons[0]

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first of each sequence; 0 if there were no more."""
        after = self.new_tokens - len(self.reasons)
        return after / (self.seconds - self.seconds_to_first_token) if after > 0 else 0.0


class Engine(Protocol):
    """What generation needs of an engine."""

    context: int

    @property
    def config(self) -> ModelConfig: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def new_cache(self) -> Cache: ...

    def forward(
        self, tokens: list[list[int]], cache: Sequence[Cache], *, on_progress: OnPrompt | None = None
    ) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class Request:
    """What a caller wants of the text: see `LayerWiseInferenceEngine.generate`."""

    max_new_tokens: int | None
    stop: tuple[str, ...]
    sampling: Sampling
    on_prompt: OnPrompt | None = None


def request(
    max_new_tokens: int | None = 512,
    stop: str | Sequence[str] = (),
    on_prompt: OnPrompt | None = None,
    **sampling: Any,
) -> Request:
    """The options of a call, checked; those of `Sampling` by name."""
    if max_new_tokens is not None:
        if not isinstance(max_new_tokens, (int, np.integer)) or isinstance(max_new_tokens, bool):
            kind = type(max_new_tokens).__name__
            raise TypeError(f"max_new_tokens has type {kind}, expected a whole number or None")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens has value {max_new_tokens}, expected 1 or more, or None")
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    for each in stops:
        if not isinstance(each, str):
            raise TypeError(f"stop has an item of type {type(each).__name__}, expected a str")
        if not each:
            raise ValueError("stop has an empty text, expected texts of one character or more")
    return Request(max_new_tokens, stops, Sampling(**sampling), on_prompt)


# ------------------------------------------------------------------------------------------------ prompts


def encoded(engine: Engine, prompt: Prompt, name: str = "prompt") -> list[int]:
    """A prompt as tokens. ValueError if there are none, or one is none; ContextFull for too many."""
    vocabulary = len(engine.tokenizer)
    tokens = (
        engine.tokenizer.encode(prompt) if isinstance(prompt, str) else [token_id(t, name) for t in prompt]
    )
    if not tokens:
        raise ValueError(f"{name} has no tokens, expected one or more: this model begins without any")
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        raise ValueError(f"{name} has token {wrong}, expected 0 to {vocabulary - 1}")
    if len(tokens) > engine.context:
        wanted = f"at most {engine.context}: the context of this engine (context=)"
        raise ContextFull(f"{name} has {len(tokens)} tokens, expected {wanted}")
    return tokens


def is_batch(prompt: Any) -> bool:
    """Whether these are several prompts: neither a text nor a list of token ids."""
    if isinstance(prompt, str):
        return False
    if not isinstance(prompt, (Sequence, np.ndarray)) or isinstance(prompt, bytes):
        raise TypeError(f"prompt has type {type(prompt).__name__}, expected a str, or a list of them")
    return len(prompt) == 0 or isinstance(prompt[0], (str, Sequence, np.ndarray))


class PromptCache:
    """Keys and values of the last sequence, for a next one that begins alike.

    Whoever takes the cache has it alone until it is given back; another who asks meanwhile gets a new one.
    """

    def __init__(self, new_cache: Callable[[], Cache]):
        self._new = new_cache
        self._kept: Cache | None = None
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, tokens: list[int]) -> Iterator[Cache]:
        """A cache with the tokens that `tokens` shares with the last sequence, but for the last of them: its
        logits are wanted. An interrupt leaves in it what was computed.
        """
        with self._lock:
            cache, self._kept = self._kept, None
        cache = cache or self._new()
        cache.truncate(_alike(cache.tokens[: cache.length], tokens[:-1]))
        try:
            yield cache
        finally:
            cache.truncate(cache.length)
            self._kept = cache

    def clear(self) -> None:
        """Forget the sequence."""
        self._kept = None


def _alike(a: Sequence[int], b: Sequence[int]) -> int:
    """How many items both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


# ------------------------------------------------------------------------------------------------ sequences


class Continuation:
    """A sequence that grows: `pending` tokens go through the model next, and `take` chooses from the logits
    that come out. `reason` is set when the text has ended.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: list[int], cache: Cache, wanted: Request):
        self.cache, self.wanted, self.prompt_tokens = cache, wanted, len(tokens)
        self.cached_tokens = cache.length
        self.pending = tokens[cache.length :]
        self.new_tokens = 0
        self.reason = ""
        self._ends = tokenizer.stop_ids
        self._sampler = Sampler(wanted.sampling, tokens)
        self._decoder = tokenizer.decoder()
        self._stops = StopStrings(wanted.stop)

    def take(self, logits: np.ndarray) -> str:
        """Choose a token; returns the text that is certain now."""
        token = self._sampler.next(logits)
        self.pending = [token]
        self.new_tokens += 1
        if token in self._ends:
            return self._ended(END)
        text = self._stops.add(self._decoder.add(token))
        if self._stops.found:
            self.reason = STOP
        elif self.new_tokens == self.wanted.max_new_tokens:
            return text + self._ended(LENGTH)
        elif self.cache.length == self.cache.capacity:
            return text + self._ended(CONTEXT)
        return text

    def _ended(self, reason: str) -> str:
        self.reason = reason
        text = self._stops.add(self._decoder.finish())
        return text + self._stops.finish()


def stream(
    engine: Engine, kept: PromptCache, tokens: list[int], wanted: Request, done: Done
) -> Iterator[str]:
    """Pieces of text after `tokens`, as soon as they are certain."""
    with kept.taken(tokens) as cache:
        sequence = Continuation(engine.tokenizer, tokens, cache, wanted)
        with closing(rounds(engine, [sequence], done)) as pieces:
            yield from (piece for (piece,) in pieces if piece)


def batch(engine: Engine, prompts: list[list[int]], wanted: Request, done: Done) -> list[str]:
    """The text after each prompt. All share each pass over the weights, and each ends on its own."""
    sequences = [Continuation(engine.tokenizer, p, engine.new_cache(), wanted) for p in prompts]
    whole: list[list[str]] = [[] for _ in prompts]
    for pieces in rounds(engine, sequences, done):
        for parts, piece in zip(whole, pieces, strict=True):
            parts.append(piece)
    return ["".join(parts) for parts in whole]


def rounds(engine: Engine, sequences: list[Continuation], done: Done) -> Generator[list[str], None, None]:
    """The text that each pass through the layers adds to each sequence. `done` is told what has happened,
    however it ends; the time between the passes, which is the caller's, does not count.
    """
    seconds = first = 0.0
    trained, told = engine.config.trained_context, sequences[0].wanted.on_prompt
    watch = _TrainedContext(trained) if engine.context > trained else None
    forward = partial(engine.forward, on_progress=told) if told else engine.forward
    try:
        while going := [i for i, sequence in enumerate(sequences) if not sequence.reason]:
            start = time.perf_counter()
            pieces = [""] * len(sequences)
            try:
                states = [sequences[i].pending for i in going], [sequences[i].cache for i in going]
                if watch:
                    watch.see(*states)
                for i, logits in zip(going, forward(*states), strict=True):
                    pieces[i] = sequences[i].take(logits)
            finally:
                seconds += time.perf_counter() - start
            first = first or seconds
            yield pieces
    finally:
        done(_statistics(sequences, first or seconds, seconds))


class _TrainedContext:
    """Warns when a sequence becomes longer than `most`, once."""

    def __init__(self, most: int):
        self._most = most
        self._warned = False

    def see(self, tokens: list[list[int]], caches: list[Cache]) -> None:
        """These tokens are about to follow what is in these caches."""
        if self._warned:
            return
        longest = max(cache.length + len(new) for new, cache in zip(tokens, caches, strict=True))
        if longest > self._most:
            self._warned = True
            found = f"the text has {longest} tokens now, and the model was made for at most {self._most}"
            warnings.warn(f"{found}: what it says from here on may make no sense", BeyondTraining, 2)


def _statistics(sequences: list[Continuation], first: float, seconds: float) -> Statistics:
    return Statistics(
        prompt_tokens=sum(each.prompt_tokens for each in sequences),
        cached_tokens=sum(each.cached_tokens for each in sequences),
        new_tokens=sum(each.new_tokens for each in sequences),
        seconds_to_first_token=first,
        seconds=seconds,
        reasons=tuple(each.reason or INTERRUPTED for each in sequences),
    )
