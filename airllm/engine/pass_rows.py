"""What a pass of several sequences begins with: the rows of each, their angles, and progress."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from airllm.engine.layers.rope_tables import Rotation
from airllm.engine.layers.rows import Angles, Rows
from airllm.memory.kv_cache import Cache
from airllm.progress import OnProgress


class Progress:
    """Reports how many tokens of some sequences are done."""

    def __init__(self, on_progress: OnProgress | None, batch: Sequence[list[int]]):
        self._report, self._done, self._total = on_progress, 0, sum(map(len, batch))

    def begin(self, parts: Sequence[list[int]]) -> None:
        """Called before a pass of these tokens."""
        if self._report:
            self._report(self._done, self._total)
        self._done += sum(map(len, parts))


def rows_of(tokens: Sequence[list[int]], caches: Sequence[Cache]) -> list[Rows]:
    """The row range of each sequence in the concatenated batch. Raises ContextFull if a cache has no room."""
    for sequence, cache in zip(tokens, caches, strict=True):
        cache.prepare(len(sequence))
    stops = accumulate(map(len, tokens))
    return [Rows(stop - len(s), stop, c) for stop, s, c in zip(stops, tokens, caches, strict=True)]


def angles_of(rotation: Rotation, rows: list[Rows]) -> Angles:
    parts = [
        rotation.at(part.cache.length, part.cache.length + part.stop - part.start, part.cache.long)
        for part in rows
    ]
    cos, sin = (
        np.concatenate(each)[:, None] if len(parts) > 1 else each[0][:, None]
        for each in zip(*parts, strict=True)
    )
    return Angles(cos, sin, rotation.rope.interleaved)
