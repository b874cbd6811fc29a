"""Divides a budget of bytes among weights, keys and values, and activations."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from airllm.architectures.model_config import ModelConfig
from airllm.files.pages import AROUND, Piece, find_gaps, intersect, merge, resident_bytes
from airllm.memory.cache_layout import PASS, CacheLayout, layer_values
from airllm.memory.estimate import activation_bytes
from airllm.memory.weight_units import WeightUnits

CHUNK = PASS  # tokens of a prompt that go through the layers together
CONTEXT = 8192  # most tokens of a sequence, unless the caller sets another limit
LEAST_CONTEXT = 256  # tokens that a budget has room for at least
_LEAST_CHUNK = 32
_SHARE = 4  # the window takes 1 / _SHARE of the room: each release of a group has a cost
_READ = 32 << 20  # bytes of a group that is read from disk: smaller reads are slower
_EDGES = 16 * AROUND  # units of more bytes may lie apart: then the pages at their edges are few
_NOTICED = 32  # other programs' memory matters from 1 / _NOTICED of the limit on: each new plan has a cost
_SLACK = (1 << 20) + AROUND  # bytes: small arrays, pages touched besides the weights, pages just prefetched


class MemoryBudgetError(ValueError):
    """The memory is too small for the model, or for these sequences: `max_memory`, or what was available."""


@dataclass(frozen=True)
class Limit:
    """The bytes that a model may take. `by_user`: it is `max_memory`, else what was available.

    `from_disk`: the page cache cannot keep the files, so what does not stay is read from disk each time.
    """

    nbytes: int
    by_user: bool = True
    from_disk: bool = False

    def __str__(self) -> str:
        kind = "max_memory is {} bytes" if self.by_user else "{} bytes of memory are available"
        return kind.format(self.nbytes)


@dataclass(frozen=True)
class Plan:
    """Which units stay, and in which groups the others pass through the window.

    `group`: the group of each unit, -1 if it stays. `groups`: the units of each group; `pieces`: their bytes
    in the files; `slots`: groups that are in memory at once. `rest`: all bytes of the files that are neither
    in a unit nor in an expert. `table`: pieces of the embedding in `rest`, then in each group. `experts`:
    bytes for experts. The plan needs `nbytes`; with `too_much` bytes, another unit could stay.
    """

    group: list[int]
    groups: list[list[int]]
    pieces: list[list[Piece]]
    slots: int
    rest: list[Piece]
    table: list[list[Piece]]
    experts: int
    nbytes: int
    too_much: int


class Budget:
    """Divides the bytes of `limit`. `unpacked`: weights are converted to float32 before they are multiplied;
    `cache_unpacked`: so are a layer's keys and values.

    `max_memory` has room for a whole sequence of `context` tokens; if that is None, it is as long as fits.
    Other limits do not shorten the context: layers give way as caches grow. Raises MemoryBudgetError, with
    the smallest possible limit, if `limit` is less.
    """

    def __init__(
        self,
        units: WeightUnits,
        limit: Limit,
        context: int | None,
        dtype: str,
        unpacked: bool = False,
        cache_unpacked: bool = False,
    ) -> None:
        self._units, self.limit, self._dtype = units, limit, dtype
        self._config: ModelConfig = units.tensors.config
        self._exact = units.most_values if unpacked else 0
        self._cache_unpacked = cache_unpacked
        self._order = _order_of_staying(units.streamed, limit.from_disk)
        self._stays = _costs(units.streamed, self._order)
        every = [piece for unit in units.streamed for piece in unit]
        self._rest = find_gaps(units.files, [*every, *units.experts])
        self._expert = units.expert_bytes
        self._window = max(map(resident_bytes, units.streamed))
        self._last: Plan | None = None
        most = min(self._config.context, CONTEXT)
        asked = context if limit.by_user else None
        least = asked or min(most, LEAST_CONTEXT)
        if limit.nbytes < (smallest := self.smallest(least)):
            raise MemoryBudgetError(self._too_small_message(smallest, least))
        self._range = smallest, limit.nbytes
        fits = asked or (self._most_tokens(least, most) if limit.by_user else least)
        self.context = fits if limit.by_user else context or most
        spare = self._room(self._least_rows(fits), fits, self._cache(fits)) - self._least_weights
        self.chunk = self._largest_chunk(spare)
        self.outputs = self._most_outputs()

    @property
    def rows_at_once(self) -> int:
        """Embedding rows to look up at once. Each row also brings in the pages around it."""
        return max(self._window // AROUND, 1)

    @property
    def _least_weights(self) -> int:
        return self._window + self._expert

    @property
    def cache_bytes(self) -> int:
        """Bytes that all caches may take together, so that a pass of a chunk still has room."""
        return self._room(self.chunk, self.context, 0) - self._least_weights

    def smallest(self, context: int) -> int:
        """The least bytes that one sequence of `context` tokens needs."""
        at_once = self._activations(self._least_rows(context), context)
        return _SLACK + self._least_weights + at_once + self._cache(context)

    def _least_rows(self, context: int) -> int:
        """Tokens of a pass that must have room: the texts of an encoder are not cut."""
        return context if self._config.encoding else _LEAST_CHUNK

    def follow(self, available: int) -> None:
        """Lower the limit to the bytes that are `available` now, or raise it again, up to the first."""
        least, first = self._range
        nbytes = min(max(available, least), first)
        if abs(nbytes - self.limit.nbytes) > first // _NOTICED or nbytes == first:
            self.limit = replace(self.limit, nbytes=nbytes)

    def plan(self, tokens: int, longest: int, caches: int, outputs: int = 1) -> Plan:
        """The plan of a pass of `tokens`, of which `outputs` go through the output together. After it, the
        longest sequence has `longest` tokens and all caches have `caches` bytes. MemoryBudgetError if they do
        not fit.
        """
        room = self._room(tokens, longest, caches, outputs)
        if room < self._least_weights:
            needed = self.limit.nbytes - room + self._least_weights
            raise MemoryBudgetError(
                f"{self.limit}, expected at least {needed} for a pass of {tokens} tokens "
                f"with caches of {caches} bytes: drop caches, pass fewer sequences at once, or allow more"
            )
        if not self._last or not self._last.nbytes <= room < self._last.too_much:
            self._last = self._plan_for(room - self._expert)
        return self._last

    def _plan_for(self, room: int) -> Plan:
        total = self._stays[-1]
        if total <= room:
            return self._plan_of(len(self._order), 0, 1, room)
        if self.limit.from_disk:
            slots = min(room // self._window, 2)
            each = max(self._window, min(room // _SHARE // slots, _READ))
        else:
            slots, each = 1, max(self._window, min(room // _SHARE, total - room))
        return self._plan_of(bisect_right(self._stays, room - slots * each) - 1, each, slots, room)

    def _plan_of(self, resident: int, each: int, slots: int, room: int) -> Plan:
        """The plan in which the first `resident` units of the order stay, and groups take `each` bytes."""
        units, stay = self._units.streamed, set(self._order[:resident])
        groups = _groups(units, stay, each)
        group = {unit: number for number, units in enumerate(groups) for unit in units}
        pieces = [merge(piece for unit in group for piece in units[unit]) for group in groups]
        needed = self._stays[resident] + slots * each + self._expert
        return Plan(
            group=[group.get(unit, -1) for unit in range(len(units))],
            groups=groups,
            pieces=pieces,
            slots=slots,
            rest=self._rest,
            table=[intersect(some, self._units.table) for some in (self._rest, *pieces)],
            experts=self._expert + (0 if groups else room - self._stays[-1]),
            nbytes=needed,
            too_much=needed + self._stays[resident + 1] - self._stays[resident] if groups else 1 << 63,
        )

    def _room(self, tokens: int, longest: int, caches: int, outputs: int = 1) -> int:
        return self.limit.nbytes - _SLACK - self._activations(tokens, longest, outputs) - caches

    def _activations(self, tokens: int, keys: int, outputs: int = 1) -> int:
        cached = layer_values(self._config, keys) if self._cache_unpacked else 0
        return activation_bytes(self._config, tokens, outputs, unpacked=(self._exact, cached))

    def _cache(self, tokens: int) -> int:
        if self._config.encoding:
            return 0
        return CacheLayout(self._config, tokens, self._dtype, windowed=True).resident_bytes(tokens)

    def _most_tokens(self, least: int, most: int) -> int:
        """The longest sequence that fits, in steps of `least` tokens."""
        fits = (n for n in range(most, least, -least) if self.smallest(n) <= self.limit.nbytes)
        return next(fits, least)

    def _largest_chunk(self, spare: int) -> int:
        """The largest chunk whose additional activations take at most a quarter of `spare` bytes."""
        rows = self._least_rows(self.context)
        least = self._activations(rows, self.context)
        sizes = (CHUNK >> i for i in range(CHUNK.bit_length()))
        fits = (n for n in sizes if self._activations(n, self.context) - least <= spare // 4)
        return max(next(fits, rows), rows)

    def _most_outputs(self) -> int:
        """The most tokens that may all go through the output: a pass of them takes no more than a chunk of a
        prompt, for which there is always room.
        """
        chunk = self._activations(self.chunk, self.context)
        fits = (n for n in range(self.chunk, 1, -1) if self._activations(n, self.context, n) <= chunk)
        return next(fits, 1)

    def _too_small_message(self, smallest: int, context: int) -> str:
        return (
            f"{self.limit}, expected at least {smallest} ({-(-smallest // 10**6)}MB) for "
            f"{self._units.tensors.weights.path} and a context of {context}: {self._least_weights} for "
            f"the weights that are needed at once, {self._cache(context)} for keys and values, the rest "
            "for activations"
        )


def _groups(units: list[list[Piece]], stay: set[int], window: int) -> list[list[int]]:
    """The units that do not stay, in groups. A group of several units needs at most `window` bytes."""
    groups: list[list[int]] = []
    for unit in (unit for unit in range(len(units)) if unit not in stay):
        last = [piece for other in groups[-1] for piece in units[other]] if groups else []
        if last and resident_bytes([*last, *units[unit]]) <= window:
            groups[-1].append(unit)
        else:
            groups.append([unit])
    return groups


def _order_of_staying(units: list[list[Piece]], from_disk: bool) -> list[int]:
    """The units, those first that stay first.

    Units that are adjacent in the files stay together, since they need the fewest pages. Large units that are
    read from disk lie evenly among those that stay, whatever their number: so the disk reads the next one
    while those between are computed. The order by reversed bits has this property.
    """
    if not from_disk or sum(map(resident_bytes, units)) < _EDGES * len(units):
        return sorted(range(len(units)), key=lambda unit: units[unit][0].place)
    bits = len(units).bit_length()
    return sorted(range(len(units)), key=lambda unit: f"{unit:0{bits}b}"[::-1])


def _costs(units: list[list[Piece]], order: list[int]) -> list[int]:
    """Bytes that the first n units of this order need, for n from 0."""
    taken: list[Piece] = []
    costs = [0]
    for unit in order:
        taken = merge([*taken, *units[unit]])
        costs.append(resident_bytes(taken))
    return costs
