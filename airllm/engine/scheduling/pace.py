"""How many tokens of a prompt take a given time: measured, since it depends on the model and the machine."""

from __future__ import annotations

import math
from collections.abc import Hashable

from airllm.engine.layers.chunks import CHUNK

STEP = CHUNK  # tokens: pieces end at multiples of it
_GROWTH = 4  # a piece is at most this many times as long as the last one
_LAST = 2  # measurements that count: the slowest of them
_SHORT = 0.7  # of the time that a piece may take: less, and the next one is longer


class Pace:
    """Measured rates of prompt passes, for each kind of kernels. `most`: tokens of the longest piece."""

    def __init__(self, most: int):
        self._most = most
        self._seen: dict[Hashable, list[tuple[int, float]]] = {}

    def tokens_within(self, kernels: Hashable, seconds: float) -> int:
        """Tokens that the next pass may have: a multiple of `STEP`.

        The rate of the last passes includes the cost of reading all weights, which a longer pass does not
        have again. So while passes are short, they get longer than by their rate.
        """
        if math.isinf(seconds):
            return self._most
        seen = self._seen.get(kernels)
        if not seen:
            return min(STEP, self._most)
        longest, slowest = max(tokens for tokens, _ in seen), max(took for _, took in seen)
        fits = min(tokens / max(took, 1e-9) for tokens, took in seen) * seconds
        if slowest <= seconds:
            fits = max(fits, longest + (STEP if slowest < _SHORT * seconds else 0))
        fits = min(fits, _GROWTH * longest, self._most)
        return min(max(int(fits) // STEP * STEP, STEP), self._most)

    def observe(self, kernels: Hashable, tokens: int, seconds: float) -> None:
        """A pass of this many tokens took `seconds`. Those of a few tokens say nothing of longer ones."""
        seen = self._seen.setdefault(kernels, [])
        if tokens >= STEP or not seen:
            self._seen[kernels] = [*seen, (tokens, seconds)][-_LAST:]
