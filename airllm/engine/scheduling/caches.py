"""Gives sequences their keys and values: memory for them, and what they can share with others."""

from __future__ import annotations

from collections.abc import Callable

from airllm.engine.model import Model
from airllm.engine.scheduling.memory import CacheMemory
from airllm.engine.scheduling.prefixes import BLOCK, Entry, Key, Match
from airllm.engine.scheduling.requests import Limits
from airllm.engine.scheduling.sequence import ONE, Sequence
from airllm.memory.kv_cache import Cache

_WORTH = 32  # tokens of another sequence's prompt that are worth waiting for


class Caches:
    """Keys and values of the sequences that are active, and of prefixes of those that ended."""

    def __init__(self, model: Model, new_cache: Callable[[], Cache], limits: Limits):
        self._model, self._new_cache = model, new_cache
        self.memory = CacheMemory(model, new_cache(), limits)

    @property
    def capacity(self) -> int:
        """The most tokens of a sequence."""
        return self.memory.capacity

    def find(self, sequence: Sequence) -> Match | None:
        """What others have of the tokens that meet the kernels of the sequence's prompt, but the last token,
        whose logits are needed.
        """
        length = len(sequence.text.tokens)
        is_long = self._model.rotations.is_long
        if is_long(length) != is_long(sequence.base):  # see `grow`
            sequence.base = length
        if sequence.prompt_logprobs is not None:
            return None
        tokens = sequence.text.tokens[: self._sharable(sequence)]
        return self.memory.prefixes.find(self._key(sequence), tokens)

    def will_share(self, sequence: Sequence, other: Sequence, match: Match | None) -> bool:
        """Whether `other`, once computed, has more of this sequence's prefix than what matches now."""
        shared = match.length if match else 0
        least = min(shared + _WORTH, self._sharable(sequence))
        if least < shared + BLOCK or sequence.prompt_logprobs is not None:
            return False
        same = self._key(sequence) == self._key(other) and other.base >= least
        return same and sequence.text.tokens[:least] == other.text.tokens[:least]

    def give(self, sequence: Sequence, match: Match | None) -> bool:
        """Give a sequence its cache, with what matches, and memory for all of its tokens; False if there is
        not enough.
        """
        reserved = self.memory.with_reserve(len(sequence.text.tokens))
        if match:
            self.memory.prefixes.use(match.entry)
        if match and match.takes_over:
            cache = self._take_over(match, reserved)
        elif self.memory.reserve(0, reserved, but=match.entry if match else None):
            cache = self._copy(match)
        else:  # without the memory for a copy, there may be enough for the sequence
            cache = self._take_over(match, reserved) if match and match.entry.idle else None
        if cache is None:
            return False
        sequence.entry, sequence.reserved = Entry(self._key(sequence), cache), reserved
        self.share(sequence)
        return True

    def _take_over(self, match: Match, reserved: int) -> Cache | None:
        """The cache of an idle entry, with only what matches; None if there is no memory for what follows."""
        self.memory.prefixes.forget(match.entry)
        if not self.memory.reserve(0, reserved):
            return None
        match.entry.cache.truncate(match.length)
        match.entry.cache.release()
        return match.entry.cache

    def _copy(self, match: Match | None) -> Cache:
        """A new cache, with what matches."""
        cache = self._new_cache()
        if match:
            cache.copy_prefix(match.entry.cache, match.length)
        return cache

    def grow(self, sequence: Sequence) -> bool:
        """Reserve memory for a running sequence's next token; False if there is none.

        If the token changes the angles of all positions (Phi-3), all tokens must be computed again. Alone,
        they meet the kernels for a prompt of that length.
        """
        length = len(sequence.text.tokens)
        if self._model.rotations.is_long(length) != sequence.cache.long:
            self.memory.prefixes.forget(sequence.active_entry)
            sequence.start_over(self._key(sequence, length))
        if length <= sequence.reserved:
            return True
        more = self.memory.with_reserve(length)
        if not self.memory.reserve(sequence.reserved, more):
            return False
        sequence.reserved = more
        return True

    def share(self, sequence: Sequence) -> None:
        """Others may share the sequence's tokens that meet the kernels of its prompt."""
        computed = sequence.computed
        length = computed if self._alike(sequence) else min(computed, sequence.base)
        self.memory.prefixes.share(sequence.active_entry, length)

    def take(self, sequence: Sequence, keep: bool = False) -> None:
        """Take a sequence's cache and memory from it. `keep` what others may share."""
        if keep:
            self.share(sequence)
        entry, sequence.entry = sequence.active_entry, None
        self.memory.free(sequence.reserved)
        sequence.reserved = 0
        if keep:
            self.memory.prefixes.keep(entry)
        else:
            self.memory.prefixes.forget(entry)

    def _key(self, sequence: Sequence, base: int = 0) -> Key:
        base = base or sequence.base
        return sequence.asked.salt, self._model.kernels_of(base), self._model.rotations.is_long(base)

    def _sharable(self, sequence: Sequence) -> int:
        """How many of its tokens have, or will have, the bits of its prompt's kernels, but the last one."""
        before_last = len(sequence.text.tokens) - 1
        return before_last if self._alike(sequence) else min(before_last, sequence.base)

    def _alike(self, sequence: Sequence) -> bool:
        """Whether its prompt and generated tokens meet the same kernels."""
        return self._model.kernels_of(sequence.base) == self._model.kernels_of(ONE)
