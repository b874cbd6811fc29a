"""Groups of weights that pass through memory: each is read before it is used, and released afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from airllm.files.pages import Piece, blocks_read, release
from airllm.memory.prefetch import Reader, Task
from airllm.memory.slots import Slot

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

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory that is not the page cache's."""

    def close(self) -> None:
        """Release all groups."""


class DiskStream:
    """Groups that are read from disk each time. At most as many as there are slots are in memory at once.

    One group is in use while the next is read. When a group is released, the one after the next is read into
    its place. So the disk is busy while resident layers run, and between passes. The page cache keeps none.
    """

    def __init__(self, reader: Reader, groups: Groups, slots: Sequence[Slot]):
        self._reader, self._groups = reader, groups
        self._slots, self._free = slots, list(slots)
        self._loading: dict[int, tuple[Task, Slot]] = {}  # in the order of use
        self._last = -1
        self._in_use: Slot | None = None

    def begin(self) -> None:
        self._read_on()

    def enter(self, group: int) -> None:
        if self._in_use and group == self._last:
            return
        self.leave(self._last)
        self._drop_until(group)
        task, slot = self._loading.pop(group) if group in self._loading else self._read(group)
        self._last, self._in_use = group, slot
        self._read_on()
        self._reader.wait(task)
        slot.enter()

    def leave(self, group: int) -> None:
        if self._in_use and group == self._last:
            self._release(self._in_use)
            self._in_use = None
            self._read_on()

    def holds(self, group: int) -> bool:
        return group in self._loading or (self._in_use is not None and group == self._last)

    @property
    def allocated_bytes(self) -> int:
        return sum(slot.allocated_bytes for slot in self._slots)

    def close(self) -> None:
        for task, slot in self._loading.values():
            self._reader.drop(task)
            self._release(slot)
        self._loading.clear()
        if self._in_use:
            self._release(self._in_use)
            self._in_use = None
        for slot in self._slots:
            slot.close()

    def _drop_until(self, group: int) -> None:
        """Drop the groups that were expected before this one, but that the pass leaves out."""
        for other in list(self._loading):
            if other == group:
                break
            task, slot = self._loading.pop(other)
            self._reader.drop(task)
            self._release(slot)

    def _read_on(self) -> None:
        """Read the next groups into the free slots."""
        last = next(reversed(self._loading), self._last)
        while self._free and len(self._loading) + bool(self._in_use) < len(self._groups):
            last = (last + 1) % len(self._groups)
            self._loading[last] = self._read(last)

    def _read(self, group: int) -> tuple[Task, Slot]:
        slot = self._free.pop()
        return slot.read(self._reader, self._groups[group]), slot

    def _release(self, slot: Slot) -> None:
        slot.leave()
        self._free.append(slot)


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

    allocated_bytes = 0

    def close(self) -> None:
        self.leave(self._group)
