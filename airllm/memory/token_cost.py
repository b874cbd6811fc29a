"""What a token costs if the model is larger than the memory: bytes from disk, and seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

from airllm.architectures.tensor_names import NamedTensors
from airllm.files.pages import Piece, blocks_read, release_to_disk
from airllm.memory.available import free_for, memory_limit, needed_bytes
from airllm.memory.budget import LEAST_CONTEXT, Budget, Plan
from airllm.memory.cache_layout import CacheLayout
from airllm.memory.prefetch import Reader
from airllm.memory.slots import open_slots
from airllm.memory.weight_units import WeightUnits, divide_weights

_ENOUGH, _LONGEST = 256 << 20, 0.5  # bytes and seconds of a measurement
_PART = 16 << 20  # bytes, after each of which there is a look at the clock
_BLOCK = 512  # bytes that the kernel counts as one


@dataclass(frozen=True)
class TokenCost:
    """The cost of a token of a short text. `available`: bytes of memory for the model. `stay` of `parts`,
    which are layers and parts of the output, stay in memory. `bytes_read`: what the disk gives for a token.
    `bytes_per_second`: the disk's speed, None if it was not measured. `free_needed`: free bytes of memory
    with which nothing is read.

    A model with experts reads at most this: experts that are used often stay.
    """

    available: int
    parts: int
    stay: int
    bytes_read: int
    bytes_per_second: float | None
    free_needed: int

    @property
    def seconds(self) -> float | None:
        """Seconds that the disk takes for a token; None if its speed was not measured."""
        return self.bytes_read / self.bytes_per_second if self.bytes_per_second else None


def token_cost(tensors: NamedTensors) -> TokenCost | None:
    """The cost with an engine's default settings; None if the model fits in memory. It reads a part of the
    file, for less than a second, to measure the disk.

    Raises MemoryBudgetError if the memory is too small for the model, OSError.
    """
    limit = memory_limit(tensors)
    if limit is None:
        return None
    units, tokens = divide_weights(tensors), min(LEAST_CONTEXT, tensors.config.context)
    held = CacheLayout(tensors.config, tokens).resident_bytes(tokens)
    plan = Budget(units, limit, None, "f16").plan(1, tokens, held)
    return TokenCost(
        available=limit.nbytes,
        parts=len(plan.group),
        stay=plan.group.count(-1),
        bytes_read=_bytes_of(chain(*plan.pieces)) + _expert_bytes_read(units, plan),
        bytes_per_second=disk_speed(chain(*(plan.pieces or [units.experts]))),
        free_needed=free_for(needed_bytes(tensors)),
    )


def disk_speed(pieces: Iterable[Piece]) -> float | None:
    """Bytes a second that the disk gives of these pieces, read as the engine reads them. None if most of them
    did not come from the disk: another process has them in memory, or the file system does not say.
    """
    parts = [part for piece in pieces for part in _cut(piece)]
    if not parts:
        return None
    reader, (slot,) = Reader(), open_slots([[part] for part in parts], 1)
    found, before, start = 0, blocks_read(), time.perf_counter()
    with closing(reader), closing(slot):
        for part in parts:
            release_to_disk([part])
            reader.wait(slot.read(reader, [part]))
            slot.leave()
            found += part.stop - part.start
            if found >= _ENOUGH or time.perf_counter() - start >= _LONGEST:
                break
        read, seconds = (blocks_read() - before) * _BLOCK, time.perf_counter() - start
    return read / seconds if read > found / 2 else None


def _cut(piece: Piece) -> Iterator[Piece]:
    for start in range(piece.start, piece.stop, _PART):
        yield piece._replace(start=start, stop=min(start + _PART, piece.stop))


def _expert_bytes_read(units: WeightUnits, plan: Plan) -> int:
    """Bytes of the experts that a token uses and that are not in memory, if all are used equally often."""
    c = units.tensors.config
    every = c.experts * sum(map(c.is_moe, range(c.layers)))
    if not every:
        return 0
    absent = max(1 - plan.experts // units.expert_bytes / every, 0)
    return int(_bytes_of(units.experts) * absent * c.experts_used / c.experts)


def _bytes_of(pieces: Iterable[Piece]) -> int:
    return sum(piece.stop - piece.start for piece in pieces)
