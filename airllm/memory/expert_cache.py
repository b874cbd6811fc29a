"""Which experts of a mixture stay in memory: those that are used often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

HALF_LIFE = 256  # passes after which a use counts half
_GROWTH = 2 ** (1 / HALF_LIFE)
_MOST = 1e200  # a use counts less than this

Expert = tuple[int, int]  # layer, number


class ExpertCache:
    """The experts in memory, at most as many as `begin` gives room for.

    Uses are counted, and a use counts half after HALF_LIFE passes. The least used expert gives way. Counts of
    experts that are not in memory are kept, so that a single use does not displace an expert that is used
    often: the next that comes displaces it. Keeping the most recently used ones instead would keep the last
    layers of a pass, when the first layers come next.
    """

    def __init__(self) -> None:
        self._uses: defaultdict[Expert, float] = defaultdict(float)
        self._weight = 1.0  # what a use counts now: it grows, so that earlier counts need not shrink
        self._room = 1
        self._needed: set[Expert] = set()
        self._resident: dict[Expert, None] = {}
        self._coldest: list[tuple[float, Expert]] = []  # heap: a resident's count, perhaps an earlier one

    def __contains__(self, expert: Expert) -> bool:
        return expert in self._resident

    def __iter__(self) -> Iterator[Expert]:
        return iter(self._resident)

    def __len__(self) -> int:
        return len(self._resident)

    def begin(self, room: int) -> list[Expert]:
        """A pass begins, with room for so many experts, at least one. Returns those that give way."""
        self._room = max(room, 1)
        self._needed.clear()
        self._weight *= _GROWTH
        if self._weight > _MOST:
            self._rescale()
        return self._make_room()

    def expect(self, experts: Iterable[Expert]) -> None:
        """These experts are used next: others give way first."""
        self._needed = set(experts)

    def use(self, expert: Expert) -> list[Expert]:
        """The expert is used now, and is in memory from now on. Returns those that give way to it."""
        self._uses[expert] += self._weight
        self._needed.discard(expert)
        if expert in self._resident:
            return []
        gone = self._make_room(1)
        self._resident[expert] = None
        heappush(self._coldest, (self._uses[expert], expert))
        return gone

    def _make_room(self, more: int = 0) -> list[Expert]:
        """Take experts out until there is room for `more`: the coldest, first of those not needed."""
        excess = len(self._resident) + more - self._room
        gone: list[Expert] = []
        spared: list[Expert] = []
        while len(gone) < excess and self._coldest:
            expert = self._pop_coldest()
            (spared if expert in self._needed else gone).append(expert)
        also = max(excess - len(gone), 0)
        gone, spared = gone + spared[:also], spared[also:]
        for expert in gone:
            del self._resident[expert]
        for expert in spared:
            heappush(self._coldest, (self._uses[expert], expert))
        return gone

    def _pop_coldest(self) -> Expert:
        """Take the least used resident off the heap. An entry with an old count is put back with the new."""
        while True:
            count, expert = heappop(self._coldest)
            if count == self._uses[expert]:
                return expert
            heappush(self._coldest, (self._uses[expert], expert))

    def _rescale(self) -> None:
        """Let a use count 1 again."""
        for expert in self._uses:
            self._uses[expert] /= self._weight
        self._coldest = sorted((self._uses[expert], expert) for expert in self._resident)
        self._weight = 1.0
