"""Finds keys and values that a prompt can share: of sequences that run, and of those that ended.

A trie of blocks of tokens finds the longest common prefix. Only tokens whose keys and values are the same
bits have the same `Key`: the kernels of a token depend on the length of its prompt (`row_kernels.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from airllm.memory.kv_cache import Cache

Key = Hashable

BLOCK = 16  # tokens: shorter prefixes are not shared
_COMPARED = 64  # entries
_LITTLE = 32  # tokens: a pass of so many takes hardly longer than one of a single token


@dataclass(eq=False)
class Entry:
    """A cache whose first `length` tokens others may share. `idle`: no sequence uses it."""

    key: Key
    cache: Cache
    length: int = 0
    idle: bool = False

    @property
    def nbytes(self) -> int:
        """Resident bytes of its cache."""
        return self.cache.resident_bytes()


@dataclass(eq=False)
class _Node:
    """A block of tokens: the blocks that follow it, and the entries that have it."""

    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    entries: dict[Entry, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Match:
    """The first `length` tokens of a prompt are those of an entry."""

    entry: Entry
    length: int

    @property
    def takes_over(self) -> bool:
        """Whether to use the entry's own cache: no sequence does, and it has little else, which costs less to
        compute again than the cache costs to copy.
        """
        return self.entry.idle and self.entry.length - self.length <= _LITTLE


class PrefixCache:
    """Prefixes that can be shared. Those of ended sequences take at most `most` bytes: the least recently
    used ones are dropped.
    """

    def __init__(self, most: int):
        self._most = most
        self._roots: dict[Key, _Node] = {}
        self._idle: OrderedDict[Entry, int] = OrderedDict()
        self.nbytes = 0  # of idle entries

    def __len__(self) -> int:
        return len(self._idle)

    def find(self, key: Key, tokens: Sequence[int]) -> Match | None:
        """The longest prefix of `tokens` that an entry has and can go back to; None if it has no block. Of
        equally long ones, one whose cache can be taken over. Of many entries that have the same blocks, only
        the latest are compared token by token.
        """
        path = list(self._walk(key, tokens))
        best: Match | None = None
        for depth in range(len(path), 0, -1):
            if best and best.length >= (depth + 1) * BLOCK:
                break  # what has fewer blocks has a shorter prefix
            matches = [
                Match(entry, length)
                for entry in islice(reversed(path[depth - 1].entries), _COMPARED)
                if (length := entry.cache.cut(_common(entry, tokens, depth * BLOCK))) >= BLOCK
            ]
            matches += [best] if best else []
            best = max(matches, key=lambda match: (match.length, match.takes_over), default=None)
        return best

    def share(self, entry: Entry, length: int) -> None:
        """From now on, others may share the first `length` tokens of this entry."""
        if length < BLOCK:
            return
        tokens, begin = entry.cache.tokens, entry.length // BLOCK * BLOCK
        node = self._roots.setdefault(entry.key, _Node())
        for start in range(0, length - BLOCK + 1, BLOCK):
            node = node.children.setdefault(tuple(tokens[start : start + BLOCK]), _Node())
            if start >= begin:
                node.entries[entry] = None
        entry.length = length

    def keep(self, entry: Entry) -> None:
        """The entry's sequence has ended: keep what can be shared, unless another entry has it too."""
        length = entry.cache.cut(entry.length)
        self.forget(entry)
        tokens = entry.cache.tokens[:length]
        found = self.find(entry.key, tokens)
        if length < BLOCK or (found and found.length == length):
            return
        entry.cache.truncate(length)
        entry.cache.release()
        self.share(entry, length)
        entry.idle, self._idle[entry] = True, entry.nbytes
        self.nbytes += entry.nbytes
        while self.nbytes > self._most:
            self.drop_oldest()

    def use(self, entry: Entry) -> None:
        """Make an idle entry the most recently used."""
        if entry.idle:
            self._idle.move_to_end(entry)

    def drop_oldest(self, but: Entry | None = None) -> bool:
        """Drop the least recently used idle entry; False if there is none `but` this one."""
        oldest = next((entry for entry in self._idle if entry is not but), None)
        if oldest:
            self.forget(oldest)
        return oldest is not None

    def forget(self, entry: Entry) -> None:
        """Share this entry no more. Its cache is left as it is."""
        path = list(self._walk(entry.key, entry.cache.tokens[: entry.length]))
        for node in path:
            node.entries.pop(entry, None)
        self._prune(entry)
        if entry.idle:
            self.nbytes -= self._idle.pop(entry)
        entry.length, entry.idle = 0, False

    def _walk(self, key: Key, tokens: Sequence[int]) -> Iterator[_Node]:
        """The nodes of these tokens' blocks, without the root."""
        node = self._roots.get(key)
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            node = node and node.children.get(tuple(tokens[start : start + BLOCK]))
            if node is None:
                return
            yield node

    def _prune(self, entry: Entry) -> None:
        """Remove the first node on the way to this entry that no entry has, and all after it."""
        node = self._roots.get(entry.key)
        for start in range(0, entry.length - BLOCK + 1, BLOCK):
            block = tuple(entry.cache.tokens[start : start + BLOCK])
            child = node.children.get(block) if node else None
            if node and child and not child.entries:
                del node.children[block]
                break
            node = child
        if entry.key in self._roots and not self._roots[entry.key].children:
            del self._roots[entry.key]


def _common(entry: Entry, tokens: Sequence[int], known: int) -> int:
    """Length of the common prefix; the first `known` tokens are equal."""
    most = min(entry.length, len(tokens))
    same = entry.cache.tokens
    length = known
    while length < most and same[length] == tokens[length]:
        length += 1
    return length
