"""What a call of generate, stream or chat asks for, and the statistics of what it did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from airllm.engine.constraint import NewConstraint
from airllm.engine.sampling import Sampling
from airllm.progress import OnProgress


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
    json_schema: Any
    regex: str | None
    choices: Sequence[str] | None
    stop: str | Sequence[str]
    on_prompt: OnProgress | None


# Reasons why a text ended.
END, STOP, LENGTH, CONTEXT, INTERRUPTED = "end", "stop", "length", "context", "interrupted"


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
    constraint of each sequence. `shown_tokens` are control tokens whose texts belong to the result, such as
    one that begins a tool call.
    """

    max_new_tokens: int | None
    stop: tuple[str, ...]
    sampling: Sampling
    on_prompt: OnProgress | None = None
    new_constraint: NewConstraint | None = None
    shown_tokens: frozenset[int] = frozenset()


def request(
    max_new_tokens: int | None = 512,
    stop: str | Sequence[str] = (),
    on_prompt: OnProgress | None = None,
    new_constraint: NewConstraint | None = None,
    shown_tokens: Iterable[int] = (),
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
    shown = frozenset(shown_tokens)
    return Request(max_new_tokens, stops, Sampling(**sampling), on_prompt, new_constraint, shown)
