"""Serves many sequences with one model, each with the bits that it has alone.

A step decodes a token of each running sequence, in one pass, and computes at most one piece of a prompt. The
piece is so short that running sequences wait for it only a fraction of a second. If memory is full, the
youngest sequence gives its own back and waits; later its tokens are computed again.

There is no thread here, no HTTP, and no clock but the one that is passed in.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np

from airllm.engine.continuation import Continuation, TrainedContext
from airllm.engine.model import Model
from airllm.engine.row_kernels import RowKernels
from airllm.engine.scheduling.caches import Caches
from airllm.engine.scheduling.pace import STEP, Pace
from airllm.engine.scheduling.requests import (
    CANCELLED,
    DEADLINE,
    Counters,
    Event,
    Limits,
    Load,
    QueueFull,
    SequenceRequest,
)
from airllm.engine.scheduling.sequence import ONE, Sequence
from airllm.memory.budget import CHUNK, MemoryBudgetError
from airllm.memory.kv_cache import Cache
from airllm.text.tokenizer import Tokenizer

_ALONE = 4  # a piece may take this many times as long if no sequence waits for it
_LONGEST_RETRY = 60.0  # seconds


class Generator(Protocol):
    """What a scheduler needs of an engine."""

    context: int
    new_cache: Callable[[], Cache]

    @property
    def model(self) -> Model: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def check_tokens(self, tokens: list[int], name: str) -> None:
        """Raise ValueError for a prompt that the model cannot continue."""


class Scheduler:
    """Serves sequences of an engine's `generator` within `limits`. All methods belong to one thread.

    `add` and `cancel` sequences at any time, and call `step` while it is not `is_idle`: it returns what
    happened to each of them.
    """

    def __init__(
        self,
        generator: Generator,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        clock: Callable[[], float] = time.monotonic,
    ):
        self._generator, self.limits, self._clock = generator, limits, clock
        self._model = generator.model
        self._caches = Caches(self._model, generator.new_cache, limits)
        self._pace = Pace(min(self._model.residency.chunk, CHUNK))
        self._most_generated = _most_generated(self._model)
        self._waiting: deque[Sequence] = deque()
        self._active: list[Sequence] = []  # the oldest first
        self._ended: list[Sequence] = []  # since the last step
        self._next_id, self._places = 0, limits.max_running
        self._between_ends, self._last_end = 1.0, clock()
        self._trained = TrainedContext(self._model.config.trained_context)
        self.counters = Counters()

    # -------------------------------------------------------------------------------------------- requests

    def add(self, request: SequenceRequest) -> int:
        """Queue a request; returns its id. Raises QueueFull, ContextFull for a prompt that is too long, and
        ValueError for tokens that the model does not know.
        """
        self._generator.check_tokens(request.tokens, "prompt")
        request.request.sampling.require_known_tokens(len(self._generator.tokenizer))
        if len(self._active) + len(self._waiting) >= self.limits.max_running + self.limits.max_waiting:
            raise QueueFull(len(self._waiting), self._retry_after())
        text = Continuation(
            self._generator.tokenizer,
            request.tokens,
            request.request,
            self._caches.capacity,
            request.constraint,
        )
        self._next_id += 1
        self._waiting.append(Sequence(self._next_id, request, text, self._clock()))
        return self._next_id

    def cancel(self, id: int) -> None:
        """End a sequence, whose memory is free at once. The next step tells that it ended. Does nothing if it
        has ended already.
        """
        for sequence in [*self._active, *self._waiting]:
            if sequence.id == id:
                self._end(sequence, CANCELLED)

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""
        return not (self._waiting or self._active or self._ended)

    def load(self) -> Load:
        """How busy it is now."""
        memory = self._caches.memory
        bytes_now = memory.nbytes, memory.prefixes.nbytes, memory.most
        return Load(len(self._active), len(self._waiting), *bytes_now, self.counters)

    def _retry_after(self) -> float:
        """Seconds until a place is free, if sequences end as fast as before."""
        return min(max(math.ceil(self._between_ends), 1.0), _LONGEST_RETRY)

    # -------------------------------------------------------------------------------------------- a step

    def step(self) -> list[Event]:
        """Decode one token of each running sequence, and compute at most one piece of prompts. Returns an
        event for each sequence that got a token or ended.
        """
        self._expire()
        running = [*self._decode(), *self._compute_piece()]
        ended, self._ended = self._ended, []
        now = self._clock()
        return [each.event(now) for each in (*running, *ended)]

    def _expire(self) -> None:
        """End the sequences that are past their deadlines."""
        timed = [each for each in (*self._active, *self._waiting) if each.asked.deadline is not None]
        now = self._clock() if timed else 0.0
        for sequence in timed:
            if now >= (sequence.asked.deadline or 0):
                self._end(sequence, DEADLINE)

    def _end(self, sequence: Sequence, reason: str) -> None:
        sequence.text.end(reason)
        self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        """The sequence has ended: keep its prefix for others, and free its place and memory."""
        if sequence in self._active:
            self._active.remove(sequence)
            self._caches.take(sequence, keep=sequence.error is None)
        else:
            self._waiting.remove(sequence)
        now = self._clock()
        self._between_ends += 0.1 * (now - self._last_end - self._between_ends)
        self._last_end = now
        self._places = min(self._places + 1, self.limits.max_running)
        self.counters.ended[sequence.text.reason] += 1
        self._ended.append(sequence)

    # -------------------------------------------------------------------------------------------- decode

    def _decode(self) -> list[Sequence]:
        """A token of each running sequence that has memory for it. Returns those that still run."""
        for sequence in list(self._active):
            if sequence.entry and sequence.decodes:
                self._grow(sequence)
        running = [each for each in self._active if each.decodes]
        if not running:
            return []
        start = self._clock()
        tokens = [each.text.tokens[-1:] for each in running]
        logits = self._pass(running, lambda caches: self._model.decode(tokens, caches))
        now = self._clock()
        self.counters.decode_passes += 1
        self.counters.decode_seconds += now - start
        if not logits:
            return []
        for sequence, row in zip(running, logits, strict=True):
            self._take(sequence, row, now)
        return [sequence for sequence in running if not sequence.text.reason]

    def _grow(self, sequence: Sequence) -> None:
        """Make room for a running sequence's next token. If there is none, the youngest sequence waits."""
        while sequence.entry and not self._caches.grow(sequence):
            self._preempt(self._active[-1])

    def _preempt(self, sequence: Sequence) -> None:
        """Free an active sequence's memory. It waits, before all others, to be computed again."""
        self._active.remove(sequence)
        self._caches.take(sequence)
        sequence.wait()
        self._waiting.appendleft(sequence)
        self.counters.preempted += 1

    def _pass(
        self, sequences: list[Sequence], run: Callable[[list[Cache]], Iterable[np.ndarray]]
    ) -> list[np.ndarray]:
        """Logits of a pass; none if it failed. An error ends its sequences, but if a memory budget is too
        small for all of them, the youngest waits until another one ends; prefixes on a device give way first.
        """
        self._trained.see(max(len(each.text.tokens) for each in sequences))
        try:
            return list(run([each.cache for each in sequences]))
        except MemoryBudgetError as error:
            if self._model.on_device and self._caches.memory.prefixes.drop_oldest():
                return []  # at the next step there is more room on the device
            if len(self._active) == 1:
                self._fail(sequences[0], error)
            else:
                self._preempt(self._active[-1])
                self._places = len(self._active)
        except Exception as error:
            for sequence in sequences:
                self._fail(sequence, error)
        return []

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        sequence.fail(error)
        self._retire(sequence)

    def _take(self, sequence: Sequence, logits: np.ndarray, now: float) -> None:
        """Sample a sequence's next token, which may end it."""
        before = sequence.text.new_tokens
        sequence.take(logits, now)
        self.counters.new_tokens += sequence.text.new_tokens - before
        if sequence.text.reason:
            self._retire(sequence)

    # -------------------------------------------------------------------------------------------- prompts

    def _compute_piece(self) -> list[Sequence]:
        """The next tokens of prompts, of as many as a piece has room for. Returns those that now run."""
        parts = self._next_piece()
        if not parts:
            return []
        sequences = list(parts)
        tokens, wholes = list(parts.values()), [sequence.kernels_for for sequence in parts]
        kernels = self._kernels(sequences[0])
        start = self._clock()

        def run(caches: list[Cache]) -> list[np.ndarray]:
            for sequence in sequences:
                sequence.report()
            return self._model.run(tokens, caches, scores, prompts=wholes)

        scores = sequences[0].scores_prompt
        logits = self._pass(sequences, run)
        now = self._clock()
        self.counters.prompt_passes += 1
        self.counters.prompt_seconds += now - start
        if not logits:
            return []
        self._pace.observe(kernels, sum(map(len, tokens)), now - start)
        if scores:
            sequences[0].score_prompt(logits[0])
            if sequences[0].error:
                self._retire(sequences[0])
            return []
        return self._after_piece(sequences, logits, now)

    def _after_piece(self, sequences: list[Sequence], logits: list[np.ndarray], now: float) -> list[Sequence]:
        done = []
        for sequence, row in zip(sequences, logits, strict=True):
            self._caches.share(sequence)
            if sequence.computed == len(sequence.text.tokens):
                self._take(sequence, row, now)
                done.append(sequence)
        return [sequence for sequence in done if not sequence.text.reason]

    def _next_piece(self) -> dict[Sequence, list[int]]:
        """The next tokens of the oldest sequences whose prompts are not computed, as many as a piece has room
        for. All meet the same kernels.
        """
        begin = self._clock()
        waits = any(each.decodes for each in self._active)
        seconds = self.limits.piece_seconds * (1 if waits else _ALONE)
        parts: dict[Sequence, list[int]] = {}
        for sequence in self._prompts(parts):
            kernels = self._kernels(sequence)
            if not parts:
                first, room = kernels, self._pace.tokens_within(kernels, seconds)
            elif kernels != first or room < STEP or self._clock() - begin >= seconds:
                break
            if sequence.scores_prompt:
                return parts or {sequence: sequence.piece(room, self._most_generated)}
            parts[sequence] = sequence.piece(room, self._most_generated)
            room -= len(parts[sequence])
        return parts

    def _kernels(self, sequence: Sequence) -> RowKernels | None:
        return self._model.kernels_of(sequence.kernels_for)

    def _prompts(self, parts: Mapping[Sequence, list[int]]) -> Iterator[Sequence]:
        """Active sequences whose prompts are not computed, the oldest first; then waiting ones, which become
        active. A waiting one whose prefix is in `parts` can soon share it, so it still waits.
        """
        yield from [each for each in self._active if not each.decodes]
        while self._waiting and len(self._active) < self._places:
            sequence = self._waiting[0]
            match = self._caches.find(sequence)
            if any(self._caches.will_share(sequence, other, match) for other in parts):
                return
            if not self._caches.give(sequence, match):
                return
            self._activate(self._waiting.popleft())
            yield sequence

    def _activate(self, sequence: Sequence) -> None:
        place = next((i for i, each in enumerate(self._active) if each.id > sequence.id), len(self._active))
        self._active.insert(place, sequence)
        self.counters.prefix_hits += bool(sequence.computed)
        if not sequence.text.new_tokens:
            sequence.text.cached_tokens = sequence.computed
            self.counters.prompt_tokens += sequence.base
            self.counters.cached_tokens += sequence.computed


def _most_generated(model: Model) -> int:
    """The most tokens in a call that meet the kernels of generated tokens."""
    alike = model.kernels_of(ONE)
    return next(count for count in range(CHUNK, 0, -1) if model.kernels_of(count) == alike)
