"""Generating text: prompts in, tokens chosen one after the other, text out."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from airllm.engine.model import Model
from airllm.engine.sampling import Sampler, Sampling
from airllm.extras import require_extra
from airllm.memory.kv_cache import Cache, ContextFull, token_id
from airllm.progress import OnProgress
from airllm.text.stop_strings import StopStrings
from airllm.text.tokenizer import Tokenizer, open_tokenizer

Prompt = str | Sequence[int]


class Options(TypedDict, total=False):
    """What `generate` knows besides the prompt and `max_new_tokens`, for those that hand it on."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None
    stop: str | Sequence[str]
    on_prompt: OnProgress | None


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


@dataclass(frozen=True)
class Request:
    """What a caller wants of the text: see `LayerWiseInferenceEngine.generate`."""

    max_new_tokens: int | None
    stop: tuple[str, ...]
    sampling: Sampling
    on_prompt: OnProgress | None = None


def request(
    max_new_tokens: int | None = 512,
    stop: str | Sequence[str] = (),
    on_prompt: OnProgress | None = None,
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
    def take(self, tokens: list[int]) -> Iterator[Cache]:
        """A cache with the tokens that `tokens` shares with the last sequence, but for the last of them: its
        logits are wanted. An interrupt leaves in it what was computed.
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
        """Forget the sequence."""
        self._kept = None


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many items both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


# ------------------------------------------------------------------------------------------------ sequences


class _Continuation:
    """A sequence that grows: `pending` tokens go through the model next, and `take` chooses from the logits
    that come out. `reason` is set when the text has ended.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: list[int], cache: Cache, request: Request):
        self.cache, self.wanted, self.prompt_tokens = cache, request, len(tokens)
        self.cached_tokens = cache.length
        self.pending = tokens[cache.length :]
        self.new_tokens = 0
        self.reason = ""
        self._ends = tokenizer.stop_ids
        self._sampler = Sampler(request.sampling, tokens)
        self._decoder = tokenizer.decoder()
        self._stops = StopStrings(request.stop)

    def take(self, logits: np.ndarray) -> str:
        """Choose a token; returns the text that is certain now."""
        token = self._sampler.next(logits)
        self.pending = [token]
        self.new_tokens += 1
        if token in self._ends:
            return self._end(END)
        text = self._stops.add(self._decoder.add(token))
        if self._stops.found:
            self.reason = STOP
        elif self.new_tokens == self.wanted.max_new_tokens:
            return text + self._end(LENGTH)
        elif self.cache.length == self.cache.capacity:
            return text + self._end(CONTEXT)
        return text

    def _end(self, reason: str) -> str:
        self.reason = reason
        text = self._stops.add(self._decoder.finish())
        return text + self._stops.finish()


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


def _statistics(sequences: list[_Continuation], first: float, seconds: float) -> Statistics:
    return Statistics(
        prompt_tokens=sum(each.prompt_tokens for each in sequences),
        cached_tokens=sum(each.cached_tokens for each in sequences),
        new_tokens=sum(each.new_tokens for each in sequences),
        seconds_to_first_token=first,
        seconds=seconds,
        reasons=tuple(each.reason or INTERRUPTED for each in sequences),
    )


# ------------------------------------------------------------------------------------------------ generator


class TextGenerator:
    """Continues prompts with a model: encodes them, runs the model token by token, decodes what it chose.

    `context`: the most tokens of a sequence. `new_cache` makes the empty cache of one. The keys and values of
    the last single prompt are kept for a next one that begins alike. `statistics`: numbers of the last text.
    """

    def __init__(self, model: Model, path: Path, context: int, new_cache: Callable[[], Cache]):
        self._model: Model | None = model
        self.path, self.context = path, context
        self._new_cache = new_cache
        self._kept = PromptCache(new_cache)
        self.statistics: Statistics | None = None

    @property
    def model(self) -> Model:
        """The layers. RuntimeError after `close`."""
        if self._model is None:
            raise RuntimeError(f"the engine of {self.path} is closed: open another one")
        return self._model

    @property
    def closed(self) -> bool:
        return self._model is None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, opened when first asked for."""
        with require_extra("models"):
            return open_tokenizer(self.path)

    def stream(self, prompt: Prompt, request: Request, name: str = "prompt") -> Iterator[str]:
        """Pieces of the text after a prompt, as soon as they are certain. `name`: of the prompt in errors,
        which are raised here and not with the first piece.
        """
        return self._pieces(self._encode_prompt(prompt, name), request)

    def batch(self, prompts: Sequence[Prompt], request: Request) -> list[str]:
        """The text after each prompt. All share each pass over the weights, and each ends on its own."""
        encoded = [self._encode_prompt(prompt, f"prompt {i}") for i, prompt in enumerate(prompts)]
        if not encoded:
            return []
        sequences = [_Continuation(self.tokenizer, p, self._new_cache(), request) for p in encoded]
        whole: list[list[str]] = [[] for _ in sequences]
        for pieces in self._rounds(sequences, request):
            for parts, piece in zip(whole, pieces, strict=True):
                parts.append(piece)
        return ["".join(parts) for parts in whole]

    def close(self) -> None:
        """Let go of the model's file and of the last sequence."""
        if self._model is not None:
            self._model.close()
        self._model = None
        self.forget()

    def forget(self) -> None:
        """Keep nothing of the last sequence."""
        self._kept.clear()

    def _encode_prompt(self, prompt: Prompt, name: str) -> list[int]:
        """A prompt as tokens. ValueError if there are none, or one is none; ContextFull for too many."""
        vocabulary = len(self.tokenizer)
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        else:
            tokens = [token_id(token, name) for token in prompt]
        if not tokens:
            raise ValueError(f"{name} has no tokens, expected one or more: this model begins without any")
        if not 0 <= min(tokens) <= max(tokens) < vocabulary:
            wrong = next(token for token in tokens if not 0 <= token < vocabulary)
            raise ValueError(f"{name} has token {wrong}, expected 0 to {vocabulary - 1}")
        if len(tokens) > self.context:
            expected = f"at most {self.context}: the context of this engine (context=)"
            raise ContextFull(f"{name} has {len(tokens)} tokens, expected {expected}")
        return tokens

    def _pieces(self, tokens: list[int], request: Request) -> Iterator[str]:
        with self._kept.take(tokens) as cache:
            sequence = _Continuation(self.tokenizer, tokens, cache, request)
            with closing(self._rounds([sequence], request)) as pieces:
                yield from (piece for (piece,) in pieces if piece)

    def _rounds(self, sequences: list[_Continuation], request: Request) -> Generator[list[str], None, None]:
        """The text that each pass through the layers adds to each sequence. `statistics` says what has
        happened, however it ends; the time between the passes, which is the caller's, does not count.
        """
        seconds = first = 0.0
        trained = self.model.config.trained_context
        watch = _TrainedContext(trained) if self.context > trained else None
        try:
            while going := [i for i, sequence in enumerate(sequences) if not sequence.reason]:
                start = time.perf_counter()
                pieces = [""] * len(sequences)
                try:
                    states = [sequences[i].pending for i in going], [sequences[i].cache for i in going]
                    if watch:
                        watch.see(*states)
                    results = self.model.run(*states, on_progress=request.on_prompt)
                    for i, logits in zip(going, results, strict=True):
                        pieces[i] = sequences[i].take(logits)
                finally:
                    seconds += time.perf_counter() - start
                first = first or seconds
                yield pieces
        finally:
            self.statistics = _statistics(sequences, first or seconds, seconds)
