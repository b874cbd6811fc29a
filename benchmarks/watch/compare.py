"""Compares ratios: how many times as fast as its peer airllm is now, and was when the table was stored.

A ratio has a range. In it are the halves of the run, which are medians of its first and of its second parts,
and its quartiles: of the samples where a part has many, else of the parts. A ratio moved if the ranges now
and then do not meet, with a margin between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median, quantiles
from typing import Any

from benchmarks.watch.figures import OURS, Cost, Reader

Case = tuple[str, str]  # what was measured, and the peer


@dataclass(frozen=True)
class Ratio:
    """A peer's cost over airllm's in each half (above 1, airllm is faster); medians of both, in seconds."""

    halves: tuple[float, ...]
    low: float
    high: float
    ours: float
    peer: float

    @property
    def middle(self) -> float:
        return geometric_mean(self.halves)

    def __add__(self, other: Ratio) -> Ratio:
        """Two runs as one, with the range of both."""
        ours, peer = (geometric_mean(each) for each in ((self.ours, other.ours), (self.peer, other.peer)))
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Ratio(self.halves + other.halves, low, high, ours, peer)


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
        if self.now.high * (1 + margin) < self.stored.low:
            return -1
        return int(self.now.low > self.stored.high * (1 + margin))


def ratios(result: dict[str, Any], read: Reader, peers: Mapping[str, tuple[str, ...]]) -> dict[Case, Ratio]:
    """The ratio of each case to each peer that the result has."""
    found = {}
    for what, costs in read(result):
        for peer, sides in peers.items():
            if there := [side for side in sides if side in costs]:
                faster = min(there, key=lambda side: _median(costs[side]))
                found[what, peer] = _ratio(costs[OURS], costs[faster])
    return found


def _ratio(ours: Sequence[Cost], peer: Sequence[Cost]) -> Ratio:
    pairs = list(zip(ours, peer, strict=True))
    each = [theirs.median / own.median for own, theirs in pairs]
    middle = (len(each) + 1) // 2
    halves = tuple(median(half) for half in (each[:middle], each[middle:]) if half)
    samples = (
        [theirs.low / own.high for own, theirs in pairs],
        [theirs.high / own.low for own, theirs in pairs],
    )
    parts = quantiles(each, n=4, method="inclusive") if len(each) > 1 else each
    has_samples = any(cost.low < cost.high for pair in pairs for cost in pair)
    reached = (*halves, min(samples[0]), max(samples[1])) if has_samples else (*halves, parts[0], parts[-1])
    return Ratio(halves, min(reached), max(reached), _median(ours), _median(peer))


def _median(costs: Sequence[Cost]) -> float:
    return median(cost.median for cost in costs)


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
