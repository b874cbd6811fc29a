"""Compares ratios: how many times as fast as its peer airllm is now, and was when the table was stored.

A ratio has a range: from the smallest to the largest of its halves, which are medians of the first and of the
second half of a run's parts. It moved if the ranges now and then do not meet, with a margin between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from benchmarks.watch.figures import OURS, Costs, Reader

Case = tuple[str, str]  # what was measured, and the peer


@dataclass(frozen=True)
class Ratio:
    """A peer's cost over airllm's in each half (above 1, airllm is faster); medians of both, in seconds."""

    halves: tuple[float, ...]
    ours: float
    peer: float

    @property
    def middle(self) -> float:
        return geometric_mean(self.halves)

    def __add__(self, other: Ratio) -> Ratio:
        """Two runs as one, with the range of both."""
        ours, peer = (geometric_mean(each) for each in ((self.ours, other.ours), (self.peer, other.peer)))
        return Ratio(self.halves + other.halves, ours, peer)


@dataclass(frozen=True)
class Move:
    """A ratio now, beside the stored one."""

    what: str
    peer: str
    stored: Ratio
    now: Ratio

    @property
    def change(self) -> float:
        """Below 1, airllm became slower beside its peer."""
        return self.now.middle / self.stored.middle

    def direction(self, margin: float) -> int:
        """-1 if airllm became slower, 1 if faster, 0 if the ranges meet or are nearer than the margin."""
        if max(self.now.halves) * (1 + margin) < min(self.stored.halves):
            return -1
        return int(min(self.now.halves) > max(self.stored.halves) * (1 + margin))


def ratios(result: dict[str, Any], read: Reader, peers: Mapping[str, tuple[str, ...]]) -> dict[Case, Ratio]:
    """The ratio of each case to each peer that the result has."""
    found = {}
    for what, costs in read(result):
        for peer, sides in peers.items():
            if there := [side for side in sides if side in costs]:
                found[what, peer] = _ratio(costs, min(there, key=lambda side: median(costs[side])))
    return found


def _ratio(costs: Costs, side: str) -> Ratio:
    each = [theirs / ours for ours, theirs in zip(costs[OURS], costs[side], strict=True)]
    middle = (len(each) + 1) // 2
    halves = (each[:middle], each[middle:]) if len(each) > 1 else (each,)
    return Ratio(tuple(map(median, halves)), median(costs[OURS]), median(costs[side]))


def moves(stored: Mapping[Case, Ratio], now: Mapping[Case, Ratio]) -> list[Move]:
    """The cases that both have."""
    return [Move(*case, stored[case], now[case]) for case in now if case in stored]


def missing(stored: Mapping[Case, Ratio], now: Mapping[Case, Ratio], measured: set[str]) -> dict[str, int]:
    """Peers that the stored table has for what was measured, and this run has not -> how many such cases."""
    absent = [peer for what, peer in stored if (what, peer) not in now and what in measured]
    return {peer: absent.count(peer) for peer in dict.fromkeys(absent)}


def differences(stored: Mapping[str, Any], now: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """What is not alike of two machines, as `measure.machine` describes them: these keys, and versions."""
    found = [f"{key} {stored[key]} then, {now[key]} now" for key in keys if stored[key] != now[key]]
    then, here = stored["versions"], now["versions"]
    peers = [name for name in then if name != "airllm" and name in here and here[name] != then[name]]
    return found + [f"{name} {then[name]} then, {here[name]} now" for name in peers]
