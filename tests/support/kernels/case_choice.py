"""Chooses a few cases of a table in which the most pairs of values meet."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")


def spread(values: Sequence[Mapping[str, object]], cases: Sequence[T], most: int) -> list[T]:
    """At most so many of the cases. Each next one has the most values, and pairs of them, that are new."""
    left = {i: _values_and_pairs(each) for i, each in enumerate(values)}
    chosen: list[T] = []
    while left and len(chosen) < most:
        best = max(left, key=lambda i: (len(left[i]), -i))
        chosen.append(cases[best])
        seen = left.pop(best)
        for new in left.values():
            new -= seen
    return chosen


def _values_and_pairs(values: Mapping[str, object]) -> set[frozenset]:
    each = [(name, repr(value)) for name, value in values.items()]
    return {frozenset(some) for count in (1, 2) for some in combinations(each, count)}
