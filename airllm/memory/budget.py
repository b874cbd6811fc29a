"""Divides a budget of bytes among weights, keys and values, and activations."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from airllm.architectures.model_config import ModelConfig
from airllm.files.pages import AROUND, Piece, find_gaps, intersect, merge, resident_bytes
from airllm.memory import kv_cache
from airllm.memory.estimate import activation_bytes
from airllm.memory.weight_units import WeightUnits

CHUNK = kv_cache.PASS  # tokens of a prompt that go through the layers together
CONTEXT = 8192  # most tokens of a sequence, unless the caller sets another limit
_LEAST_CHUNK, _LEAST_CONTEXT = 32, 256
_SHARE = 4  # the window takes 1 / _SHARE of the room: each release of a group has a cost
_SLACK = (1 << 20) + AROUND  # bytes: small arrays, pages touched besides the weights, pages just prefetched


class MemoryBudgetError(ValueError):
    """`max_memory` is too small for the model, or for these sequences."""


@dataclass(frozen=True)
class Plan:
    """Which units stay, and in which groups the others pass through the window.

    `group`: the group of each unit, -1 if it stays. `groups`: the units of each group; `pieces`: their bytes
    in the files. `rest`: all bytes of the files that do not stay; `table`: those of the embedding. `experts`:
    bytes for experts. The plan needs `nbytes`; with `too_much` bytes, another unit could stay.
    """

    group: list[int]
    groups: list[list[int]]
    pieces: list[list[Piece]]
    rest: list[Piece]
    table: list[Piece]
    experts: int
    nbytes: int
    too_much: int


class Budget:
    """Divides `limit` bytes. `unpacked`: weights are converted to float32 before they are multiplied;
    `cache_unpacked`: so are a layer's keys and values.

    Raises MemoryBudgetError, with the smallest possible limit, if `limit` is less.
    """

    def __init__(
        self,
        units: WeightUnits,
        limit: int,
        context: int | None,
        dtype: str,
        unpacked: bool = False,
        cache_unpacked: bool = False,
    ) -> None:
        self._units, self.limit, self._dtype = units, limit, dtype
        self._config: ModelConfig = units.tensors.config
        self._exact = units.most_values if unpacked else 0
        self._cache_unpacked = cache_unpacked
        # WeightUnits that are adjacent in the files stay together, since they need the fewest pages.
        self._order = sorted(range(len(units.streamed)), key=lambda unit: units.streamed[unit][0].place)
        self._stays = _costs(units.streamed, self._order)
        self._expert = units.expert_bytes
        self._window = max(map(resident_bytes, units.streamed))
        self._last: Plan | None = None
        most = min(self._config.context, CONTEXT)
        least = context or min(most, _LEAST_CONTEXT)
        if limit < (smallest := self.smallest(least)):
            raise MemoryBudgetError(self._too_small_message(smallest, least))
        self.context = context or self._most_tokens(least, most)
        spare = self._room(_LEAST_CHUNK, self.context, self._cache(self.context)) - self._least_weights
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
        at_once = self._activations(_LEAST_CHUNK, context)
        return _SLACK + self._least_weights + at_once + self._cache(context)

    def plan(self, tokens: int, longest: int, caches: int, outputs: int = 1) -> Plan:
        """The plan of a pass of `tokens`, of which `outputs` go through the output together. After it, the
        longest sequence has `longest` tokens and all caches have `caches` bytes. MemoryBudgetError if they do
        not fit.
        """
        room = self._room(tokens, longest, caches, outputs)
        if room < self._least_weights:
            needed = self.limit - room + self._least_weights
            raise MemoryBudgetError(
                f"max_memory is {self.limit} bytes, expected at least {needed} for a pass of {tokens} tokens "
                f"with caches of {caches} bytes: drop caches, pass fewer sequences at once, or allow more"
            )
        if not self._last or not self._last.nbytes <= room < self._last.too_much:
            self._last = self._plan_for(room - self._expert)
        return self._last

    def _plan_for(self, room: int) -> Plan:
        total = self._stays[-1]
        if total <= room:
            return self._plan_of(len(self._order), 0, room)
        window = max(self._window, min(room // _SHARE, total - room))
        return self._plan_of(bisect_right(self._stays, room - window) - 1, window, room)

    def _plan_of(self, resident: int, window: int, room: int) -> Plan:
        """The plan in which the first `resident` units of the order stay."""
        units, stay = self._units.streamed, set(self._order[:resident])
        groups = _groups(units, stay, window)
        group = {unit: number for number, units in enumerate(groups) for unit in units}
        rest = find_gaps(
            self._units.files, [*(p for unit in stay for p in units[unit]), *self._units.experts]
        )
        needed = self._stays[resident] + window + self._expert
        return Plan(
            group=[group.get(unit, -1) for unit in range(len(units))],
            groups=groups,
            pieces=[merge(piece for unit in group for piece in units[unit]) for group in groups],
            rest=rest,
            table=intersect(rest, self._units.table),
            experts=self._expert + (0 if groups else room - self._stays[-1]),
            nbytes=needed,
            too_much=needed + self._stays[resident + 1] - self._stays[resident] if groups else 1 << 63,
        )

    def _room(self, tokens: int, longest: int, caches: int, outputs: int = 1) -> int:
        return self.limit - _SLACK - self._activations(tokens, longest, outputs) - caches

    def _activations(self, tokens: int, keys: int, outputs: int = 1) -> int:
        cached = kv_cache.layer_values(self._config, keys) if self._cache_unpacked else 0
        return activation_bytes(self._config, tokens, outputs, unpacked=(self._exact, cached))

    def _cache(self, tokens: int) -> int:
        return kv_cache.resident_bytes(self._config, tokens, tokens, self._dtype, windowed=True)

    def _most_tokens(self, least: int, most: int) -> int:
        """The longest sequence that fits, in steps of `least` tokens."""
        fits = (n for n in range(most, least, -least) if self.smallest(n) <= self.limit)
        return next(fits, least)

    def _largest_chunk(self, spare: int) -> int:
        """The largest chunk whose additional activations take at most a quarter of `spare` bytes."""
        least = self._activations(_LEAST_CHUNK, self.context)
        sizes = (CHUNK >> i for i in range(CHUNK.bit_length()))
        fits = (n for n in sizes if self._activations(n, self.context) - least <= spare // 4)
        return max(next(fits, _LEAST_CHUNK), _LEAST_CHUNK)

    def _most_outputs(self) -> int:
        """The most tokens that may all go through the output: a pass of them takes no more than a chunk of a
        prompt, for which there is always room.
        """
        chunk = self._activations(self.chunk, self.context)
        fits = (n for n in range(self.chunk, 1, -1) if self._activations(n, self.context, n) <= chunk)
        return next(fits, 1)

    def _too_small_message(self, smallest: int, context: int) -> str:
        return (
            f"max_memory is {self.limit} bytes, expected at least {smallest} ({-(-smallest // 10**6)}MB) for "
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


def _costs(units: list[list[Piece]], order: list[int]) -> list[int]:
    """Bytes that the first n units of this order need, for n from 0."""
    taken: list[Piece] = []
    costs = [0]
    for unit in order:
        taken = merge([*taken, *units[unit]])
        costs.append(resident_bytes(taken))
    return costs
