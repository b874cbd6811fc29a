"""The rows that go through a layer: whose tokens they are, and what depends on their positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airllm.architectures.layer_spec import QueryTemperature
from airllm.memory.kv_cache import Cache


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `stop` of x are the next tokens of one sequence. `cache` holds its keys and values."""

    start: int
    stop: int
    cache: Cache

    def of(self, array: np.ndarray) -> np.ndarray:
        return array[self.start : self.stop]


@dataclass(frozen=True)
class Angles:
    """Rotary angles of all rows: cosines and sines (rows, 1, dim / 2), float32."""

    cos: np.ndarray
    sin: np.ndarray
    interleaved: bool


def query_temperatures(of: QueryTemperature, rows: Sequence[Rows]) -> np.ndarray:
    """The factor (rows, 1, 1), float32, on each row's queries. It depends on the position in the sequence."""
    at = np.concatenate([part.cache.length + np.arange(part.stop - part.start) for part in rows])
    return (1 + of.scale * np.log1p((at + of.offset) // of.length)).astype(np.float32)[:, None, None]
