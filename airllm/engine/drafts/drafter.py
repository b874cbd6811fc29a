"""What a source of drafts is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Kind(NamedTuple):
    """Guesses that are right about equally often; `prior`: how often, as long as none was verified."""

    name: str
    prior: float


class Drafter(Protocol):
    """Guesses the next tokens of one sequence, from all its tokens so far.

    `free`: a guess takes next to no time. `seconds`: what the last proposal took.
    """

    free: bool
    seconds: float

    def seconds_per_token(self, single: float) -> float:
        """What a guess takes, if a call of one row of the model takes `single`."""

    def kinds(self, most: int) -> Sequence[Kind]:
        """The kinds of the tokens that it can guess now, at most `most`; empty if it has no guess."""

    def propose(self, count: int) -> list[int]:
        """Guess this many tokens, no more than there are `kinds`."""

    def observe(self, tokens: Sequence[int]) -> None:
        """The sequence has got these tokens."""
