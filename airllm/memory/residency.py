"""Which weights are in memory: all of them, or as many as a budget has room for.

Weights are pages of mapped files; nothing is copied. Without a budget, a thread brings them in once, and they
stay. With a budget, as many layers as fit stay. The others pass through a window, one group after another:
a group is released before the next is touched, and meanwhile a thread reads the group after that into the
page cache. The resident part is fixed. Every token needs all layers in the same order, so keeping the most
recent ones would keep those that are needed last.

Keys and values count too: when caches grow, fewer layers stay. In a mixture of experts, if all other weights
are resident, the most recently used experts stay.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol
from weakref import WeakSet

from airllm.architectures.tensor_names import NamedTensors
from airllm.files import pages
from airllm.files.pages import Mapped, release
from airllm.memory.budget import CHUNK, CONTEXT, Budget
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer, open_layer
from airllm.memory.prefetch import Reader
from airllm.memory.weight_units import divide_weights, layer_pieces

_Use = Callable[[int, int], None]
_Expect = Callable[[int, Iterable[int]], None]


class Residency(Protocol):
    """What the forward pass calls on its way through the weights.

    `chunk`: tokens that go through the layers together. `outputs`: maximum tokens that go through the output
    together. `context`: maximum tokens of a sequence. `whole`: all weights are resident, so a pass need not
    request them in parts. `cache_bytes`: what all caches may take together; None for no limit.
    """

    chunk: int
    outputs: int
    context: int
    layers: list[Layer]
    whole: bool
    cache_bytes: int | None

    def begin(self, grows: Sequence[tuple[Cache, int]], outputs: int = 1) -> None:
        """Begin a pass, in which each of these caches grows by that many tokens, and `outputs` of all tokens
        go through the output together.
        """

    def embedding_parts(self, tokens: int) -> Iterator[tuple[int, int]]:
        """Ranges (start, stop) of tokens that are looked up in the embedding together."""

    def layer_parts(self) -> Iterator[slice]:
        """Ranges of layers, in order. Each range is in memory until the next one is requested."""

    def output_parts(self) -> Iterator[slice]:
        """Ranges of rows of the output matrix, likewise."""

    def close(self) -> None:
        """Stop the reader thread."""


class Unlimited:
    """No budget: a thread brings in all weights, and they stay."""

    whole = True

    def __init__(self, tensors: NamedTensors, layers: list[Layer], context: int | None):
        self.layers, self._rows = layers, tensors.config.vocabulary
        self.chunk, self.context = CHUNK, context or min(tensors.config.context, CONTEXT)
        self.outputs = CHUNK
        self.cache_bytes: int | None = None
        self._reader = Reader()
        if pages.SUPPORTED:
            self._reader.fill([piece for unit in divide_weights(tensors).streamed for piece in unit])

    def begin(self, grows: Sequence[tuple[Cache, int]], outputs: int = 1) -> None:
        self._reader.check()

    def embedding_parts(self, tokens: int) -> Iterator[tuple[int, int]]:
        yield 0, tokens

    def layer_parts(self) -> Iterator[slice]:
        yield slice(0, len(self.layers))

    def output_parts(self) -> Iterator[slice]:
        yield slice(0, self._rows)

    def close(self) -> None:
        self._reader.close()


class Limited:
    """Keeps weights, keys and values, and activations within a budget of bytes."""

    whole = False

    def __init__(
        self,
        tensors: NamedTensors,
        layers: list[Layer],
        limit: int,
        context: int | None,
        cache_dtype: str,
        unpacked: bool,
        cache_unpacked: bool,
    ):
        if not pages.SUPPORTED:
            raise RuntimeError("max_memory needs Linux, whose madvise releases parts of a mapped file")
        self._units = divide_weights(tensors)
        self._budget = Budget(self._units, limit, context, cache_dtype, unpacked, cache_unpacked)
        self.chunk, self.context = self._budget.chunk, self._budget.context
        self.outputs = self._budget.outputs
        self.cache_bytes: int | None = self._budget.cache_bytes
        self.layers = [_watch_experts(layer, self._use, self._expect) for layer in layers]
        self._caches: WeakSet[Cache] = WeakSet()
        self._experts: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._reader = Reader()
        self._group = -1
        self._blocks_read, self._reads_disk = -1, True
        if not tensors.config.tied_embeddings:
            for piece in self._units.table:
                pages.advise_random(piece)
        self._plan = self._budget.plan(1, 1, 0)
        release(self._plan.rest)  # pages that opening the file touched

    @property
    def stays(self) -> int:
        """The number of layers and parts of the output that are resident now."""
        return self._plan.group.count(-1)

    @property
    def used_experts(self) -> list[tuple[int, int]]:
        """(layer, expert) of the experts in memory, the most recently used last."""
        return list(self._experts)

    @property
    def expert_bytes(self) -> int:
        """Bytes of the largest expert."""
        return self._units.expert_bytes

    def begin(self, grows: Sequence[tuple[Cache, int]], outputs: int = 1) -> None:
        self._reader.check()
        self._units.check()
        self._caches |= {cache for cache, _ in grows}
        more = dict(grows)
        held = sum(cache.resident_bytes(more.get(cache, 0)) for cache in self._caches)
        longest = max(cache.length + new for cache, new in grows)
        self._plan = self._budget.plan(sum(more.values()), longest, held, outputs)
        for cache, new in grows:
            cache.take(new)
        self._evict(self._plan.experts)
        release(self._plan.rest)
        self._group = -1
        before, self._blocks_read = self._blocks_read, _blocks_read()
        self._reads_disk = self._blocks_read > before  # else the last pass found all in the page cache

    def embedding_parts(self, tokens: int) -> Iterator[tuple[int, int]]:
        each = self._budget.rows_at_once
        for start in range(0, tokens, each):
            yield start, min(start + each, tokens)
            release(self._plan.table)

    def layer_parts(self) -> Iterator[slice]:
        yield from self._parts(0, len(self.layers))

    def output_parts(self) -> Iterator[slice]:
        first, rows = len(self.layers), [0, *self._units.rows]
        for part in self._parts(first, len(self._plan.group)):
            yield slice(rows[part.start - first], rows[part.stop - first])

    def _parts(self, first: int, last: int) -> Iterator[slice]:
        """Ranges of consecutive units that are in memory together."""
        for _, together in groupby(range(first, last), self._plan.group.__getitem__):
            units = list(together)
            self._enter(units[0])
            yield slice(units[0], units[-1] + 1)

    def close(self) -> None:
        self._reader.close()

    def _enter(self, unit: int) -> None:
        """Prepare for this unit. If it begins a group, release the group before it and prefetch the next."""
        group = self._plan.group[unit]
        if group in (-1, self._group):
            return
        if self._group >= 0:
            release(self._plan.pieces[self._group])
        self._group = group
        if self._reads_disk:
            self._reader.ask(self._plan.pieces[(group + 1) % len(self._plan.pieces)])

    def _expect(self, layer: int, numbers: Iterable[int]) -> None:
        """Prefetch these experts of a layer."""
        new = [number for number in numbers if (layer, number) not in self._experts]
        self._reader.ask([piece for number in new for piece in self._units.expert(layer, number)])

    def _use(self, layer: int, number: int) -> None:
        """Mark this expert as used now, and release the least recently used ones beyond the budget."""
        key = (layer, number)
        if key not in self._experts:
            self._experts[key] = None
            self._evict(self._plan.experts)
        self._experts.move_to_end(key)

    def _evict(self, room: int) -> None:
        while len(self._experts) * self._units.expert_bytes > room:
            oldest, _ = self._experts.popitem(last=False)
            release(self._units.expert(*oldest))


def _blocks_read() -> int:
    """Disk blocks that this process has read so far."""
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock


def _watch_experts(layer: Layer, use: _Use, expect: _Expect) -> Layer:
    """The layer, with experts that report their use."""
    if not layer.experts:
        return layer
    return dataclasses.replace(layer, experts=dataclasses.replace(layer.experts, use=use, expect=expect))


def open_layers(tensors: NamedTensors, max_memory: int | None) -> list[Layer]:
    """Open all layers. With a budget, the pages that this touches are released at once."""
    files: dict[int, Mapped] = {}
    layers = []
    for index in range(tensors.config.layers):
        layers.append(open_layer(tensors, index))
        if max_memory is not None and pages.SUPPORTED:
            release(layer_pieces(files, tensors, index))
    return layers


def residency(
    tensors: NamedTensors,
    layers: list[Layer],
    max_memory: int | None,
    context: int | None,
    cache_dtype: str,
    unpacked: bool,
    cache_unpacked: bool,
) -> Residency:
    """How the weights of an opened model stay in memory: within `max_memory` bytes, or all if it is None.

    `unpacked`: weights are converted to float32 before they are multiplied; `cache_unpacked`: so are keys and
    values. Raises MemoryBudgetError if the budget is too small.
    """
    if max_memory is None:
        return Unlimited(tensors, layers, context)
    return Limited(tensors, layers, max_memory, context, cache_dtype, unpacked, cache_unpacked)
