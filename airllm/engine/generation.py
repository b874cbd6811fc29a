"""Text generation: encode prompts, run the model token by token, sample, decode."""

from __future__ import annotations

import operator
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from airllm.engine.constraint import Constraint, NewConstraint
from airllm.engine.drafts.speculation import Speculation, Speculator
from airllm.engine.model import Model
from airllm.engine.sampling import Sampler, Sampling
from airllm.extras import require_extra
from airllm.memory.kv_cache import Cache, ContextFull, token_id
from airllm.progress import OnProgress
from airllm.text.stop_strings import StopStrings
from airllm.text.tokenizer import Tokenizer, open_tokenizer

Prompt = str | Sequence[int]


class Options(TypedDict, total=False):
    """The keyword options of `generate`, for methods that pass them on."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]
    on_prompt: OnProgress | None


# Reasons why a text ended.
END, STOP, LENGTH, CONTEXT, INTERRUPTED = "end", "stop", "length", "context", "interrupted"


class BeyondTraining(UserWarning):
    """A text became longer than the model was trained for."""


@dataclass(frozen=True)
class Statistics:
    """Counts and times of one call of generate, stream or chat, summed over its sequences.

    `cached_tokens` of the prompt were in the cache already. `new_tokens` counts the tokens that the model
    chose, the stop token included; `accepted_tokens` of them were guessed right, of `drafted_tokens` guesses
    that were verified. `reasons`, one for each sequence: "end" (a stop token), "stop" (a stop string),
    "length" (max_new_tokens), "context" (full), "interrupted" (Ctrl-C, or an unfinished stream).
    """

    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    seconds_to_first_token: float
    seconds: float
    reasons: tuple[str, ...]
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def reason(self) -> str:
        """Why the first text ended."""
        return self.reasons[0]

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed, without the first token of each sequence; 0 if there were no more."""
        after = self.new_tokens - len(self.reasons)
        return after / (self.seconds - self.seconds_to_first_token) if after > 0 else 0.0


@dataclass(frozen=True)
class Request:
    """The checked options of one call: see `LayerWiseInferenceEngine.generate`. `new_constraint` makes the
    constraint of each sequence.
    """

    max_new_tokens: int | None
    stop: tuple[str, ...]
    sampling: Sampling
    on_prompt: OnProgress | None = None
    new_constraint: NewConstraint | None = None


def request(
    max_new_tokens: int | None = 512,
    stop: str | Sequence[str] = (),
    on_prompt: OnProgress | None = None,
    new_constraint: NewConstraint | None = None,
    **sampling: Any,
) -> Request:
    """Check a call's options; `sampling` are the fields of `Sampling`. Raises TypeError or ValueError."""
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
    return Request(max_new_tokens, stops, Sampling(**sampling), on_prompt, new_constraint)


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


# ------------------------------------------------------------------------------------------------ sequences


class _Continuation:
    """A sequence that grows. `pending` are the tokens to run next, `draft` are guesses of those after them.
    `take` samples tokens from their logits, `read` returns the text that is final since the last call.
    `reason` is set when the text ends. A `constraint` restricts the tokens; it belongs to this sequence.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tokens: list[int],
        cache: Cache,
        request: Request,
        constraint: Constraint | None = None,
    ):
        self.cache, self.wanted, self.prompt_tokens = cache, request, len(tokens)
        self.cached_tokens = cache.length
        self.pending = tokens[cache.length :]
        self.draft: list[int] = []
        self.new_tokens = self.drafted = self.accepted = 0
        self.reason = self._text = ""
        self._ends = tokenizer.stop_ids
        self._sampler = Sampler(request.sampling, tokens)
        self._constraint = constraint
        self._decoder = tokenizer.decoder()
        self._stops = StopStrings(request.stop)

    @property
    def room(self) -> int:
        """How many more tokens may come."""
        most = self.wanted.max_new_tokens
        return self.cache.capacity if most is None else most - self.new_tokens

    def take(self, logits: np.ndarray) -> int:
        """Sample a token from logits (vocabulary)."""
        token = self._choose(logits)
        self.pending = [token]
        self.new_tokens += 1
        self._text += self._add(token)
        return token

    def _choose(self, logits: np.ndarray) -> int:
        if self._constraint is None:
            return self._sampler.next(logits)
        token = self._sampler.next(logits, self._constraint.mask())
        self._constraint.accept(token)
        return token

    def take_drafted(self, logits: Sequence[np.ndarray]) -> list[int]:
        """Sample a token from each of 1 + drafted rows of logits, as long as it is the drafted one: the next
        row holds for no other. The cache keeps the tokens that it would have without drafts.
        """
        if self.draft:
            self.cache.truncate(self.cache.length - len(self.draft))
        chosen = [self.take(logits[0])]
        for guess, row in zip(self.draft, logits[1:], strict=True):
            if chosen[-1] != guess or self.reason:
                break
            self.cache.extend([guess])  # its keys and values are in place
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
        """Called before `tokens` are appended to `caches`."""
        if self._warned:
            return
        longest = max(cache.length + len(new) for new, cache in zip(tokens, caches, strict=True))
        if longest > self._most:
            self._warned = True
            found = f"the text has {longest} tokens now, and the model was made for at most {self._most}"
            warnings.warn(f"{found}: the text from here on may make no sense", BeyondTraining, 2)


def _statistics(sequences: list[_Continuation], first: float, seconds: float) -> Statistics:
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
        self._new_cache = new_cache
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
            return open_tokenizer(self.path)

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
        sequences = [self._begin(tokens, self._new_cache(), request) for tokens in encoded]
        whole: list[list[str]] = [[] for _ in sequences]
        for pieces in self._rounds(sequences, request):
            for parts, piece in zip(whole, pieces, strict=True):
                parts.append(piece)
        return ["".join(parts) for parts in whole]

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
        """Token ids of a prompt. ValueError for no tokens or an unknown id; ContextFull for too many."""
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

    def _begin(self, tokens: list[int], cache: Cache, request: Request) -> _Continuation:
        constraint = request.new_constraint() if request.new_constraint else None
        return _Continuation(self.tokenizer, tokens, cache, request, constraint)

    def _pieces(self, tokens: list[int], request: Request) -> Iterator[str]:
        drafts = self.speculation.begin(tokens) if self.speculation else nullcontext()
        with self._kept.take(tokens) as cache, drafts as speculator:
            sequence = self._begin(tokens, cache, request)
            with closing(self._rounds([sequence], request, speculator)) as pieces:
                yield from (piece for (piece,) in pieces if piece)

    def _rounds(
        self, sequences: list[_Continuation], request: Request, speculator: Speculator | None = None
    ) -> Generator[list[str], None, None]:
        """Yield the text that each pass through the layers adds to each sequence. A `speculator` drafts for
        the only one.

        Sets `statistics` at the end, also after an error. Time that the caller spends between passes is not
        counted.
        """
        seconds = first = 0.0
        trained = self.model.config.trained_context
        watch = _TrainedContext(trained) if self.context > trained else None
        try:
            while going := [sequence for sequence in sequences if not sequence.reason]:
                start = time.perf_counter()
                try:
                    if watch:
                        watch.see([each.pending for each in going], [each.cache for each in going])
                    if speculator:
                        self._drafted_pass(going[0], request, speculator)
                    else:
                        self._pass(going, request)
                finally:
                    seconds += time.perf_counter() - start
                first = first or seconds
                yield [sequence.read() for sequence in sequences]
        finally:
            self.statistics = _statistics(sequences, first or seconds, seconds)

    def _pass(self, sequences: list[_Continuation], request: Request) -> None:
        """Each sequence gets a token, all of them by one pass."""
        pending, caches = [each.pending for each in sequences], [each.cache for each in sequences]
        results = self.model.run(pending, caches, on_progress=request.on_prompt)
        for sequence, logits in zip(sequences, results, strict=True):
            sequence.take(logits)

    def _drafted_pass(self, sequence: _Continuation, request: Request, speculator: Speculator) -> None:
        """The sequence gets a token and all drafted ones that are right."""
        follows = len(sequence.pending) == 1  # it is not the prompt

        def most() -> int:
            return min(self.model.most_drafted(sequence.cache), sequence.room - 1)

        sequence.draft = draft = speculator.propose(most) if follows else []
        start = time.perf_counter()
        if draft:
            logits = list(self.model.verify([*sequence.pending, *draft], sequence.cache))
        else:
            logits = self.model.run([sequence.pending], [sequence.cache], on_progress=request.on_prompt)
        seconds = time.perf_counter() - start
        chosen = sequence.take_drafted(logits)
        if follows:
            speculator.observe(chosen, len(draft), seconds)
        else:
            speculator.follow(chosen)
