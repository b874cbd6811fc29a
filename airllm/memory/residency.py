"""Which weights are in memory: all of them, or as many as a budget has room for.

Weights are pages of mapped files. Without a budget, they are copied to another order if the backend has
kernels for it (`kernel_copies.py`), or a thread brings them in once; they stay. With a budget, as many
layers as fit stay. The others pass through memory, one group after another (`stream.py`). The resident part
is fixed. Every token needs all layers in the same order, so keeping the most recent ones would keep those
that are needed last. If the weights do not fit in the memory that is available, that is the budget.

Keys and values count too: when caches grow, fewer layers stay. In a mixture of experts, if all other weights
are resident, the experts that are used often stay (`expert_cache.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol
from weakref import WeakSet

from airllm.architectures.tensor_names import NamedTensors
from airllm.files import pages
from airllm.files.pages import Mapped, Piece, release, release_to_disk
from airllm.memory import available
from airllm.memory.budget import CHUNK, CONTEXT, Budget, Limit, Plan
from airllm.memory.expert_cache import Expert, ExpertCache
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer, open_layer
from airllm.memory.prefetch import Reader, Task
from airllm.memory.slots import open_slots
from airllm.memory.stream import CachedStream, DiskStream, Stream
from airllm.memory.weight_units import divide_weights, layer_pieces

_SPARE_HUGE_PAGES = 512 << 20  # bytes that the kernel keeps free, or gives to others meanwhile

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

    @property
    def limit(self) -> Limit | None:
        """The memory of weights, caches and activations."""

    def fill(self, pieces: Iterable[Piece] | None = None) -> None:
        """Begin to read the weights that stay: these pieces of the files, or all."""

    def begin(self, grows: Sequence[tuple[Cache, int]], outputs: int = 1, tokens: int = 0) -> None:
        """Begin a pass, in which each of these caches grows by that many tokens, and `outputs` of all tokens
        go through the output together. `tokens`: those of a pass that has no caches.
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
    limit: Limit | None = None

    def __init__(self, tensors: NamedTensors, layers: list[Layer], context: int | None):
        self.layers, self._rows = layers, tensors.config.vocabulary
        self.chunk, self.context = CHUNK, context or min(tensors.config.context, CONTEXT)
        self.outputs = CHUNK
        self.cache_bytes: int | None = None
        self._reader = Reader()
        self._tensors = tensors

    def fill(self, pieces: Iterable[Piece] | None = None) -> None:
        """Begin to bring in these pieces of the files; None: all that a token needs."""
        if pages.SUPPORTED:
            units = divide_weights(self._tensors).streamed if pieces is None else [pieces]
            self._reader.fill([piece for unit in units for piece in unit])

    def begin(self, grows: Sequence[tuple[Cache, int]], outputs: int = 1, tokens: int = 0) -> None:
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
    """Keeps weights, keys and values, and activations within `limit`. `plan` is that of the last pass."""

    whole = False

    def __init__(
        self,
        tensors: NamedTensors,
        layers: list[Layer],
        limit: Limit,
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
        self._experts, self._coming = ExpertCache(), dict[Expert, Task]()
        self._release = release_to_disk if limit.from_disk else release
        self._reader = Reader()
        if not tensors.config.tied_embeddings:
            for piece in self._units.table:
                pages.advise_random(piece)
        self._filling: dict[int, Task] = {}
        self.plan = self._budget.plan(1, 1, 0)
        self._stream = self._open_stream()
        self._advise_page_sizes()
        release(piece for unit in self._units.streamed for piece in unit)  # what opening the file touched

    @property
    def limit(self) -> Limit:
        """The memory of weights, caches and activations, now."""
        return self._budget.limit

    @property
    def stays(self) -> int:
        """The number of layers and parts of the output that are resident now."""
        return self.plan.group.count(-1)

    @property
    def used_experts(self) -> list[Expert]:
        """(layer, expert) of the experts in memory."""
        return list(self._experts)

    @property
    def expert_bytes(self) -> int:
        """Bytes of the largest expert."""
        return self._units.expert_bytes

    def fill(self, pieces: Iterable[Piece] | None = None) -> None:
        """Nothing: the first pass reads what its plan says."""

    def begin(self, grows: Sequence[tuple[Cache, int]], outputs: int = 1, tokens: int = 0) -> None:
        self._reader.check()
        self._units.check()
        self._caches |= {cache for cache, _ in grows}
        more = dict(grows)
        held = sum(cache.resident_bytes(more.get(cache, 0)) for cache in self._caches)
        longest = max((cache.length + new for cache, new in grows), default=tokens)
        self._make_way(held)
        self._follow(self._budget.plan(tokens + sum(more.values()), longest, held, outputs))
        for cache, new in grows:
            cache.take(new)
        release(self.plan.rest)
        self._stream.begin()
        self._coming.clear()
        if self.expert_bytes:
            self._release_experts(self._experts.begin(self.plan.experts // self.expert_bytes))

    def _make_way(self, held: int) -> None:
        """Let fewer layers stay while other programs use the memory; caches have `held` bytes of it."""
        if not self.limit.by_user and (free := available.available_memory()) is not None:
            self._budget.follow(free + held + self._stream.allocated_bytes)

    def _follow(self, plan: Plan) -> None:
        """Release what does not stay by this plan, and read what does."""
        if plan is not self.plan:
            self._stream.close()
            self.plan = plan
            self._stream = self._open_stream()
            self._advise_page_sizes()
        if self.limit.from_disk:
            self._fill()

    def _fill(self) -> None:
        """Read the units that stay, in order, unless they have been read."""
        for unit, group in enumerate(self.plan.group):
            if group >= 0:
                self._filling.pop(unit, None)
            elif unit not in self._filling:
                self._filling[unit] = self._reader.fill(self._units.streamed[unit])

    @property
    def _own_memory(self) -> bool:
        """Whether what passes has memory of its own. Beside experts it has not: to release one releases the
        pages around it too, which would be a slot's, with weights that are in use.
        """
        return pages.can_move() and not self.expert_bytes

    def _advise_page_sizes(self) -> None:
        """Of a model larger than the memory, read what stays in huge pages, and experts in small ones.

        If what passes takes huge pages of the page cache, what stays takes small ones: else the kernel would
        evict some of it for each huge page, though gigabytes are free, but not in one piece. For the same
        reason no more huge pages are read than are free as such.
        """
        if not self.limit.from_disk:
            return
        room = self._room_for_huge_pages() if self._own_memory else 0
        for unit, group in enumerate(self.plan.group):
            pieces = self._units.streamed[unit]
            if group < 0 and self._own_memory:
                if unit in self._filling or all(map(pages.is_cached, pieces)):
                    continue
                room -= sum(piece.stop - piece.start for piece in pieces)
            pages.advise_page_size(pieces, huge=group >= 0 or room > 0)
        pages.advise_page_size(self._units.experts, huge=False)

    def _room_for_huge_pages(self) -> int:
        """Bytes that are free for what stays in huge pages, beside those of the stream."""
        free = pages.free_huge_pages()
        return 1 << 63 if free is None else free - self._stream.allocated_bytes - _SPARE_HUGE_PAGES

    def _open_stream(self) -> Stream:
        """Release what passes by this plan, and begin to read it."""
        for pieces in self.plan.pieces:
            self._release(pieces)
        if self.limit.from_disk:
            groups = self.plan.pieces
            return DiskStream(self._reader, groups, open_slots(groups, self.plan.slots, self._own_memory))
        return CachedStream(self._reader, self.plan.pieces)

    def embedding_parts(self, tokens: int) -> Iterator[tuple[int, int]]:
        each = self._budget.rows_at_once
        for start in range(0, tokens, each):
            yield start, min(start + each, tokens)
            self._release_table()

    def _release_table(self) -> None:
        """Release the rows of the embedding, unless they are an output matrix that is needed."""
        rest, *groups = self.plan.table
        release(rest)
        for group, pieces in enumerate(groups):
            if pieces and not self._stream.holds(group):
                release(pieces)

    def layer_parts(self) -> Iterator[slice]:
        yield from self._parts(0, len(self.layers))

    def output_parts(self) -> Iterator[slice]:
        first, rows = len(self.layers), [0, *self._units.rows]
        for part in self._parts(first, len(self.plan.group)):
            yield slice(rows[part.start - first], rows[part.stop - first])

    def _parts(self, first: int, last: int) -> Iterator[slice]:
        """Ranges of consecutive units that are in memory together."""
        for group, together in groupby(range(first, last), self.plan.group.__getitem__):
            units = list(together)
            if group >= 0:
                self._stream.enter(group)
            else:
                self._wait_for(units)
            yield slice(units[0], units[-1] + 1)
            if group >= 0 and units[-1] == self.plan.groups[group][-1]:
                self._stream.leave(group)

    def _wait_for(self, units: Sequence[int]) -> None:
        """Wait until these units, which stay, have been read for the first time."""
        for task in (self._filling[unit] for unit in units if unit in self._filling):
            self._reader.wait(task)

    def close(self) -> None:
        self._reader.close()
        self._stream.close()

    def _expect(self, layer: int, numbers: Iterable[int]) -> None:
        """Read those of these experts that are not in memory into the page cache."""
        experts = [(layer, number) for number in numbers]
        self._experts.expect(experts)
        for expert in experts:
            if expert not in self._experts:
                self._coming[expert] = self._reader.ask(self._units.expert(*expert))

    def _use(self, layer: int, number: int) -> None:
        """The expert is used now: release those that give way to it. Wait until the disk has been read."""
        self._release_experts(self._experts.use((layer, number)))
        if (task := self._coming.pop((layer, number), None)) and self.limit.from_disk:
            self._reader.wait(task)

    def _release_experts(self, experts: Iterable[Expert]) -> None:
        for expert in experts:
            self._release(self._units.expert(*expert))


def _watch_experts(layer: Layer, use: _Use, expect: _Expect) -> Layer:
    """The layer, with experts that report their use."""
    if not layer.experts:
        return layer
    return dataclasses.replace(layer, experts=dataclasses.replace(layer.experts, use=use, expect=expect))


def open_layers(tensors: NamedTensors) -> list[Layer]:
    """Open all layers. The pages that this touches are released: a budget may have no room for them."""
    files: dict[int, Mapped] = {}
    layers = []
    for index in range(tensors.config.layers):
        layers.append(open_layer(tensors, index))
        if pages.SUPPORTED:
            release(layer_pieces(files, tensors, index))
    return layers


def residency(
    tensors: NamedTensors,
    layers: list[Layer],
    limit: Limit | None,
    context: int | None,
    cache_dtype: str,
    unpacked: bool,
    cache_unpacked: bool,
) -> Residency:
    """How the weights of an opened model stay in memory: within `limit`, or all if it is None.

    `unpacked`: weights are converted to float32 before they are multiplied; `cache_unpacked`: so are keys and
    values. Raises MemoryBudgetError if the budget is too small.
    """
    if limit is None:
        return Unlimited(tensors, layers, context)
    return Limited(tensors, layers, limit, context, cache_dtype, unpacked, cache_unpacked)
