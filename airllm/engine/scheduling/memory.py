"""Memory for the keys and values of all sequences."""

from __future__ import annotations

from airllm.backends.devices import host_memory
from airllm.engine.model import Model
from airllm.engine.scheduling.prefixes import Entry, PrefixCache
from airllm.engine.scheduling.requests import Limits
from airllm.memory.kv_cache import Cache

RESERVED = 64  # tokens that memory is reserved for at once, beyond those of a sequence


class CacheMemory:
    """Reserves memory for sequences, and drops prefixes of ended ones to make room.

    `empty` is any cache of the engine. Raises ValueError if one sequence of the whole context does not fit.
    """

    def __init__(self, model: Model, empty: Cache, limits: Limits):
        self._layout = empty.layout
        self.capacity = empty.capacity
        least = self.bytes_of(self.capacity)
        if limits.cache_bytes is not None and limits.cache_bytes < least:
            raise ValueError(
                f"cache_bytes has value {limits.cache_bytes}, expected at least {least}: the keys and values "
                f"of one sequence of {self.capacity} tokens; allow more, or open the engine with less context"
            )
        self.most = max(most_bytes(model, limits), least)
        share = 2 if model.residency.whole else 4  # layers that do not fit are read again for each token
        prefix_bytes = self.most // share if limits.prefix_bytes is None else limits.prefix_bytes
        self.prefixes = PrefixCache(min(prefix_bytes, self.most))
        self.reserved = 0

    @property
    def nbytes(self) -> int:
        """Bytes in use: reserved for sequences, or of prefixes."""
        return self.reserved + self.prefixes.nbytes

    def bytes_of(self, tokens: int) -> int:
        """Resident bytes of a sequence of this many tokens."""
        return self._layout.resident_bytes(tokens)

    def with_reserve(self, tokens: int) -> int:
        """How many tokens to reserve memory for, if a sequence has this many."""
        return min(-(-tokens // RESERVED) * RESERVED + RESERVED, self.capacity)

    def reserve(self, before: int, tokens: int, but: Entry | None = None) -> bool:
        """Reserve memory for `tokens` tokens of a sequence that has it for `before`. Drops idle prefixes
        `but` this one, as many as need be; False if that is not enough.
        """
        more = self._reserved_bytes(tokens) - self._reserved_bytes(before)
        while self.nbytes + more > self.most:
            if not self.prefixes.drop_oldest(but):
                return False
        self.reserved += more
        return True

    def free(self, tokens: int) -> None:
        """Free the memory that was reserved for this many tokens of a sequence."""
        self.reserved -= self._reserved_bytes(tokens)

    def _reserved_bytes(self, tokens: int) -> int:
        return self.bytes_of(tokens) if tokens else 0


def most_bytes(model: Model, limits: Limits) -> int:
    """Bytes that keys and values may take: at most what `limits` and the model's budget allow."""
    budget = model.residency.cache_bytes
    if limits.cache_bytes is not None or budget is not None:
        return min(each for each in (limits.cache_bytes, budget) if each is not None)
    total, free = host_memory()
    return ((total if free is None else free) - model.weight_bytes) // 2
