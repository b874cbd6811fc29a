"""What a scheduler is asked to do, and what it answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from airllm.engine.constraint import Constraint
from airllm.engine.request import Request, Statistics
from airllm.engine.sampling import TokenLogprob

# Reasons why a sequence ended, besides those of airllm.engine.request.
CANCELLED, DEADLINE, ERROR = "cancelled", "deadline", "error"


class QueueFull(RuntimeError):
    """Too many sequences wait. Try again in `retry_after` seconds."""

    def __init__(self, waiting: int, retry_after: float):
        super().__init__(f"{waiting} sequences wait, and no more may: try again in {retry_after:.0f} seconds")
        self.retry_after = retry_after


@dataclass(frozen=True)
class SequenceRequest:
    """A prompt, as tokens, and how it is to be continued.

    `logprobs`: how many alternatives of each new token to return, None for no log probabilities;
    `prompt_logprobs`: the same for the tokens of the prompt. `deadline`: by the scheduler's clock. Sequences
    share the keys and values of equal prefixes, but only among equal `salt`s.
    """

    tokens: list[int]
    request: Request
    constraint: Constraint | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    deadline: float | None = None
    salt: str = ""


@dataclass(frozen=True)
class Event:
    """What a step did for a sequence.

    `text`: what became final since the last event. `tokens`: those that were chosen, with their `logprobs`.
    `prompt_logprobs` come with the first token; the first of them is None. `reason`: why the sequence ended:
    one of `Statistics.reasons`, "cancelled", "deadline" or "error"; "" while it runs.
    """

    id: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob | None] | None
    reason: str
    error: Exception | None
    statistics: Statistics


@dataclass(frozen=True)
class Limits:
    """Limits of a scheduler.

    `max_running`: sequences that are computed at the same time; `max_waiting`: those that wait besides.
    `cache_bytes`: for keys and values of all sequences, None for half of the free memory, or what a budget
    leaves; `prefix_bytes`: at most this many of them for sequences that ended, None for half of them.
    `piece_seconds`: how long a piece of a prompt may delay other sequences.
    """

    max_running: int = 16
    max_waiting: int = 64
    cache_bytes: int | None = None
    prefix_bytes: int | None = None
    piece_seconds: float = 0.1

    def __post_init__(self) -> None:
        for name, least in (("max_running", 1), ("max_waiting", 0), ("cache_bytes", 1), ("prefix_bytes", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} has value {value}, expected {least} or more")
        if not self.piece_seconds > 0:
            raise ValueError(f"piece_seconds has value {self.piece_seconds}, expected a number above 0")


@dataclass
class Counters:
    """Totals since the scheduler began. `ended` counts sequences by reason; `prefix_hits` those that found a
    prefix; `prompt_seconds` and `decode_seconds` are the time of passes.
    """

    ended: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    prefix_hits: int = 0
    preempted: int = 0
    prompt_passes: int = 0
    decode_passes: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True)
class Load:
    """How busy a scheduler is. `cache_bytes` includes `prefix_bytes`, those of sequences that ended."""

    running: int
    waiting: int
    cache_bytes: int
    prefix_bytes: int
    most_cache_bytes: int
    counters: Counters
