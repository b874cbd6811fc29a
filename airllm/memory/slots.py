"""Memory for weights that pass: a part of a file is read into a slot, is used, and gives way to the next.

Through the page cache, gigabytes of pages would be allocated and freed for each token: small pages if the
memory is nearly full, at the cost of what stays. A virtual machine that returns free pages to its host has to
fault each of them in again, which took longer than the product with what was read. So a slot has memory of
its own, which it keeps, and reads past the page cache.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from airllm.files import pages
from airllm.files.pages import HUGE_PAGE, Mapped, Piece, release_to_disk
from airllm.memory.prefetch import Reader, Task

_PAGE = mmap.PAGESIZE
_STEP = 64 << 20  # bytes of one read: after each, the reader waits for a processor; it can be stopped then


class Slot(Protocol):
    """Room for pieces of mapped files, one list of them after another. `allocated_bytes`: of memory that is
    not the page cache's.
    """

    allocated_bytes: int

    def read(self, reader: Reader, pieces: list[Piece]) -> Task:
        """Begin to read these pieces."""

    def enter(self) -> None:
        """What was read is used now, at its addresses in the map."""

    def leave(self) -> None:
        """It is not needed any more."""

    def close(self) -> None:
        """Free the memory."""


def open_slots(groups: Sequence[list[Piece]], count: int, own_memory: bool = True) -> list[Slot]:
    """At most `count` slots for these groups, with memory of their own if the kernel can move it."""
    count = min(count, len(groups))
    if not (own_memory and pages.can_move()):
        return [PageCacheSlot() for _ in range(count)]
    nbytes = max((sum(map(_span, pieces)) for pieces in groups), default=0)
    return [MemorySlot(nbytes) for _ in range(count)]


class PageCacheSlot:
    """Pages of the file itself, for a kernel that cannot put other memory in their place (before 5.7)."""

    allocated_bytes = 0
    _pieces: list[Piece]

    def read(self, reader: Reader, pieces: list[Piece]) -> Task:
        self._pieces = pieces
        return reader.fill(pieces)

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        release_to_disk(self._pieces)

    def close(self) -> None:
        pass


class _Place(NamedTuple):
    """Where whole pages of a file, `start` to `stop`, lie in a slot: from byte `at` on."""

    mapped: Mapped
    start: int
    stop: int
    at: int


class MemorySlot:
    """`nbytes` of memory. In use, it takes the place of the pieces in the map, by moving page tables: no
    weight's address changes, and no byte is copied.
    """

    def __init__(self, nbytes: int):
        self._memory = mmap.mmap(-1, nbytes + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)
        self._address, self.allocated_bytes = pages.address_of(self._view), len(self._view)
        pages.prefer_huge_pages(self._address, self.allocated_bytes)
        self._places: list[_Place] = []
        self._files: dict[int, _UncachedFile] = {}
        self._in_map = False

    def read(self, reader: Reader, pieces: list[Piece]) -> Task:
        at, self._places = -self._address % HUGE_PAGE, []
        for piece in pieces:
            start, stop = _whole_pages(piece)
            at += (piece.mapped.address + start) % HUGE_PAGE  # a huge page can move only to where it fits
            self._places.append(_Place(piece.mapped, start, stop, at))
            at += stop - start
            at += -(self._address + at) % HUGE_PAGE
        return reader.read(pieces, self._read_step)

    def _read_step(self, piece: Piece) -> int:
        """Read the first part of the piece; returns the bytes that remain."""
        place = next(p for p in self._places if p.mapped is piece.mapped and p.start <= piece.start < p.stop)
        first = piece.start // _PAGE * _PAGE
        at, most = place.at + first - place.start, min(place.stop - first, _STEP)
        read = first + self._file(piece.mapped).read(self._view[at : at + most], first)
        if read <= piece.start:
            raise OSError(errno.EIO, f"a model's file ends at byte {read}, expected {piece.stop} bytes")
        return max(piece.stop - read, 0)

    def _file(self, mapped: Mapped) -> _UncachedFile:
        return self._files.get(mapped.address) or self._files.setdefault(
            mapped.address, _UncachedFile(mapped.map.descriptor)
        )

    def enter(self) -> None:
        for place in self._places:
            pages.move(self._address + place.at, place.mapped.address + place.start, place.stop - place.start)
        self._in_map = True

    def leave(self) -> None:
        if self._in_map:
            for place in self._places:
                nbytes = place.stop - place.start
                pages.move(place.mapped.address + place.start, self._address + place.at, nbytes)
                pages.map_again(place.mapped, place.start, place.stop)
        self._in_map = False

    def close(self) -> None:
        self.leave()
        for file in self._files.values():
            file.close()
        self._view.release()
        self._memory.close()


class _UncachedFile:
    """A file that is read past the page cache, if its file system can do that; else what was read is dropped
    from the page cache.
    """

    def __init__(self, descriptor: int):
        self._cached = descriptor
        self._direct: int | None = None
        try:
            self._direct = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return
        self._finalize = weakref.finalize(self, os.close, self._direct)

    def read(self, to: memoryview, start: int) -> int:
        """Read from byte `start` on; returns the number of bytes."""
        if self._direct is not None:
            try:
                return os.preadv(self._direct, [to], start)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.close()
        read = os.preadv(self._cached, [to], start)
        os.posix_fadvise(self._cached, start, read, os.POSIX_FADV_DONTNEED)
        return read

    def close(self) -> None:
        if self._direct is not None:
            self._finalize()
        self._direct = None


def _whole_pages(piece: Piece) -> tuple[int, int]:
    return piece.start // _PAGE * _PAGE, -(-piece.stop // _PAGE) * _PAGE


def _span(piece: Piece) -> int:
    """The most bytes that a piece takes of a slot: from one huge page to another."""
    start, stop = (piece.mapped.address + byte for byte in _whole_pages(piece))
    return -(-stop // HUGE_PAGE) * HUGE_PAGE - start // HUGE_PAGE * HUGE_PAGE
