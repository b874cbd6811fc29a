"""Chooses how many tokens to draft, from the measured cost of calls and from how often drafts were right.

A call of several rows costs more than one of a single row, and gives a token for each draft that is right,
and one more. Both sides are measured while the text is generated, and the number of drafts is the one with
the most tokens a second to expect. If no number pays, nothing is drafted.

What is expected may be wrong, so a credit bounds the loss, whatever happens. It is counted in calls of one
row. It begins at `_FIRST`, each token adds `_PER_TOKEN`, each drafting call adds the time that it saved and
takes the time that it lost. A number of drafts that may lose more than the credit is not tried. Only a call
that takes longer than expected can lose more, and then its size is not tried for a time in proportion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

from airllm.engine.drafts.drafter import Kind

ROWS = (1, 2, 4, 8, 16)  # rows of a call, one more than drafts
_LAST = 5  # calls of a size whose median is its cost
_COUNTS = 256  # calls for which a cost counts, at least
_ASSUMED_SLOPE = 0.25  # what a further row costs, in calls of one row, as long as none was measured
_WEIGHT = 0.1  # of the last guess in the average of how often guesses are right
_FORGOTTEN = 1 / 64  # of the way back to a kind's prior, for each call that guesses nothing
_FIRST, _PER_TOKEN, _MOST = 1.0, 0.01, 6.0  # credit, in calls of one row
_MARGIN = 1.05  # how much faster drafting must promise to be


class CallCosts:
    """Seconds of a call by its number of rows, one of ROWS: the median of the last ones.

    A size that did not run for long may cost something else now, and one expensive call may have been
    disturbed. So a median counts for a limited number of calls: the more the size costs, the more.
    """

    def __init__(self) -> None:
        self._last = {rows: deque[float](maxlen=_LAST) for rows in ROWS}
        self._median: dict[int, float] = {}
        self._until = dict.fromkeys(ROWS, 0)
        self._calls = 0

    def add(self, rows: int, seconds: float) -> None:
        """A call of so many rows took so long."""
        last = self._last[rows]
        if last and not self._counts(rows):
            seconds_before = last.pop()
            last.clear()
            last.append(seconds_before)
        last.append(seconds)
        self._median[rows] = cost = median_low(last)
        self._calls += 1
        single = self._median.get(1, cost)
        certain = cost if len(last) > 1 else min(cost, rows * single)
        self._until[rows] = self._calls + max(_COUNTS, int((certain / single - 1) / _PER_TOKEN))

    @property
    def single(self) -> float | None:
        """Seconds of a call of one row; None before the first."""
        return self._median.get(1)

    def is_measured(self, rows: int) -> bool:
        """Whether such a call ever ran."""
        return rows in self._median

    def seconds(self, rows: int) -> float:
        """What a call of so many rows takes. If no median counts: by the line through its neighbours, or
        through the two sizes below. A call of one row must have been measured.
        """
        known = [size for size in ROWS if size == 1 or self._counts(size)]
        below = [size for size in known if size <= rows]
        above = [size for size in known if size > rows]
        if below[-1] == rows:
            return self._median[rows]
        if len(below + above) == 1:
            return self._median[1] * (1 + _ASSUMED_SLOPE * (rows - 1))
        first, second = (below[-1], above[0]) if above else below[-2:]
        slope = (self._median[second] - self._median[first]) / (second - first)
        return self._median[below[-1]] + max(slope, 0.0) * (rows - below[-1])

    def _counts(self, rows: int) -> bool:
        return self._calls < self._until[rows]


class Choice(NamedTuple):
    """A number of tokens to draft, and the tokens a second that it promises."""

    drafts: int
    rate: float


class DraftPolicy:
    """Chooses the number of drafts of each call of an engine; it learns from all its sequences."""

    def __init__(self) -> None:
        self.costs = CallCosts()
        self.credit = _FIRST
        self._right: dict[Kind, float] = {}

    def right(self, kind: Kind) -> float:
        """How often tokens of this kind are right."""
        return self._right.get(kind, kind.prior)

    def choose(self, kinds: Sequence[Kind], seconds_per_token: float = 0.0) -> Choice:
        """How many tokens of these kinds to draft, if each takes so long to guess."""
        single = self.costs.single
        if single is None:
            return Choice(0, 0.0)
        best = Choice(0, _MARGIN / single)
        tokens = all_right = 1.0
        for count, kind in enumerate(kinds, 1):
            all_right *= self.right(kind)
            tokens += all_right
            if count + 1 not in ROWS:
                continue
            if not self.costs.is_measured((count + 1) // 2):
                break  # a larger call may be unexpectedly expensive: sizes are tried one after the other
            seconds = self.costs.seconds(count + 1) + count * seconds_per_token
            if seconds > (1 + self.credit) * single:
                break
            best = max(best, Choice(count, tokens / seconds), key=lambda each: each.rate)
        return best

    def learn(self, kind: Kind, was_right: bool) -> None:
        """A guess of this kind was right, or wrong."""
        self._right[kind] = self.right(kind) + _WEIGHT * (was_right - self.right(kind))

    def forget(self, kinds: Sequence[Kind]) -> None:
        """Nothing was guessed of these kinds: with time, what is known about them counts less."""
        for kind in set(kinds):
            self._right[kind] = self.right(kind) + _FORGOTTEN * (kind.prior - self.right(kind))

    def add(self, drafted: int, tokens: int, seconds: float, seconds_drafting: float = 0.0) -> None:
        """A call verified `drafted` tokens and gave `tokens`; it took `seconds`, and guessing took its own.

        More time than as many calls of one row was taken by something else, such as another program.
        """
        self.costs.add(drafted + 1, seconds)
        single = self.costs.single
        earned = _PER_TOKEN * tokens
        if drafted and single:
            taken = min(seconds, (drafted + 1) * single) + seconds_drafting
            earned += tokens - taken / single
        self.credit = min(max(self.credit + earned, 0.0), _MOST)
