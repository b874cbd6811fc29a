"""Groups of weights that pass through memory: each is read before it is used, and released afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from airllm.files.pages import Piece, blocks_read, release, release_to_disk
from airllm.memory.prefetch import Reader, Task

Groups = Sequence[list[Piece]]


class Stream(Protocol):
    """Groups of pieces, which every pass uses in order, as a circle: after the last comes the first."""

    def begin(self) -> None:
        """A pass begins."""

    def enter(self, group: int) -> None:
        """Return when this group can be used."""

    def leave(self, group: int) -> None:
        """Release the group, if it is the one in use."""

    def holds(self, group: int) -> bool:
        """Whether the group is in memory, or being read."""

    def close(self) -> None:
        """Release all groups."""


class DiskStream:
    """Groups that are read from disk each time, `slots` of which are in memory at once.

    One group is in use while the next is read. When a group is released, the one after the next is read into
    its place. So the disk is busy while resident layers run, and between passes. The page cache keeps none.
    """

    def __init__(self, reader: Reader, groups: Groups, slots: int):
        self._reader, self._groups, self._slots = reader, groups, slots
        self._loading: dict[int, Task] = {}  # in the order of use
        self._last, self._in_use = -1, False

    def begin(self) -> None:
        self._read_on()

    def enter(self, group: int) -> None:
        if self._in_use and group == self._last:
            return
        self.leave(self._last)
        self._drop_until(group)
        task = self._loading.pop(group, None) or self._reader.fill(self._groups[group])
        self._last, self._in_use = group, True
        self._read_on()
        self._reader.wait(task)

    def leave(self, group: int) -> None:
        if self._in_use and group == self._last:
            release_to_disk(self._groups[group])
            self._in_use = False
            self._read_on()

    def holds(self, group: int) -> bool:
        return group in self._loading or (self._in_use and group == self._last)

    def close(self) -> None:
        for group, task in self._loading.items():
            self._reader.drop(task)
            release_to_disk(self._groups[group])
        self._loading.clear()
        if self._in_use:
            release_to_disk(self._groups[self._last])
            self._in_use = False

    def _drop_until(self, group: int) -> None:
        """Drop the groups that were expected before this one, but that the pass leaves out."""
        for other in list(self._loading):
            if other == group:
                break
            self._reader.drop(self._loading.pop(other))
            release_to_disk(self._groups[other])

    def _read_on(self) -> None:
        """Read the next groups into the free slots."""
        last = next(reversed(self._loading), self._last)
        while len(self._loading) + self._in_use < min(self._slots, len(self._groups)):
            last = (last + 1) % len(self._groups)
            self._loading[last] = self._reader.fill(self._groups[last])


class CachedStream:
    """Groups that the page cache keeps, one of which is in this process's memory.

    While a group is in use, the next is read into the page cache, unless the last pass found all of it there.
    """

    def __init__(self, reader: Reader, groups: Groups):
        self._reader, self._groups = reader, groups
        self._group = -1
        self._blocks_read, self._reads_disk = -1, True

    def begin(self) -> None:
        before, self._blocks_read = self._blocks_read, blocks_read()
        self._reads_disk = self._blocks_read > before

    def enter(self, group: int) -> None:
        if group == self._group:
            return
        self.leave(self._group)
        self._group = group
        if self._reads_disk:
            self._reader.ask(self._groups[(group + 1) % len(self._groups)])

    def leave(self, group: int) -> None:
        if group == self._group >= 0:
            release(self._groups[group])
            self._group = -1

    def holds(self, group: int) -> bool:
        return group == self._group

    def close(self) -> None:
        self.leave(self._group)
