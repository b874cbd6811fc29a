"""A sequence's tokens on a device, one by one: once three were computed alike, the launches of the next ones
are those of the third, with other numbers (`airllm.backends.device.recording`). So the host plans nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from airllm.backends.device.recording import Pass, Recording, record
from airllm.memory.kv_cache import Cache

_COMPARED = 3  # passes: the third shows that numbers grow evenly
_TRIED = 8  # passes, until those that differ are no longer compared


class RecordedSteps:
    """The next tokens of one sequence on the device of a `DeviceOps`. The arrays of a token stay there."""

    def __init__(self, ops: Any):
        self._ops = ops
        self._known: Any = None
        self._turns: dict[tuple[int, int] | None, _Turn] = {}

    def run(self, cache: Cache, given: Sequence[np.ndarray], compute: Callable[[], np.ndarray]) -> np.ndarray:
        """What `compute` makes of the sequence's next token, of which it uploads what is `given`. The cache
        must have room for it, and does not grow.
        """
        known = _what_launches_depend_on(cache, self._ops.place.even_keys)
        if known != self._known:
            self._known, self._turns = known, {}
        recurrent = cache.recurrent if cache.layout.recurrent else None
        states = (recurrent.now, recurrent.next) if recurrent else None  # are read and written by turns
        turn = self._turns.setdefault(states, _Turn(self._ops))
        return turn.run(cache.length, given, compute)


class _Turn:
    """The tokens that read and write the same recurrent states, if there are any."""

    def __init__(self, ops: Any):
        self._ops = ops
        self._passes: list[Pass] = []
        self._left = _TRIED
        self._recording: Recording | None = None

    def run(
        self, position: int, given: Sequence[np.ndarray], compute: Callable[[], np.ndarray]
    ) -> np.ndarray:
        if self._recording:
            return self._recording.run(position, given)
        if not self._left or not self._has_room():
            return compute()
        noted = Pass(position, holds=len(self._passes) == _COMPARED - 1)
        with self._ops.noting(noted):
            found = compute()
        self._left -= 1
        self._compare([*self._passes, noted], given)
        return found

    def _compare(self, passes: list[Pass], given: Sequence[np.ndarray]) -> None:
        """Record what the last pass did, or wait for another one. The first token of a text may differ."""
        self._passes = passes
        if len(passes) == _COMPARED:
            self._recording = record(self._ops.place, passes, given)
            self._passes = [] if self._recording or not self._left else passes[1:]
            passes[-1].held.clear()

    def _has_room(self) -> bool:
        """Whether the arrays of a token may stay."""
        limit = self._ops.arena.limit
        return limit is None or not self._passes or self._ops.arena.now + self._passes[-1].nbytes <= limit


def _what_launches_depend_on(cache: Cache, even_keys: int) -> tuple[Any, ...]:
    """What the launches of a sequence's next token depend on besides numbers that grow evenly: its arrays,
    and in which of the ranges its position is within which they grow so.
    """
    arrays: list[Any] = [each for layer in cache.on_device() for each in cache.layer(layer).arrays]
    buffers = tuple(id(each.memory.buffer) for each in arrays)
    return buffers, cache.long, *_ranges(cache, even_keys)


def _ranges(cache: Cache, even_keys: int) -> Iterator[int]:
    """Attention to more keys takes more work-groups from time to time; layers with a window lack the first
    tokens, or see those of a chunk; queries are scaled by steps.
    """
    c, at = cache.config, cache.length
    yield cache.dropped
    for start in (0, cache.dropped):
        yield (at - start) // even_keys
    for wide in set(filter(None, c.windows if c.chunked else ())):
        yield at // wide
        yield at % wide // even_keys
    if of := c.query_temperature:
        yield (at + of.offset) // of.length
