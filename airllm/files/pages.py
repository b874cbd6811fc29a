"""Pages of mapped files: asked for ahead of use, brought into memory, let go. By Linux's `madvise`.

`mmap.madvise` does not serve: it holds Python's lock while the disk is read.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np


def _fault_around(largest: Path = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")) -> int:
    """A page fault brings in what lies around it: some pages, or as many as the page cache has in one."""
    try:
        return max(int(largest.read_text()), _SOME_PAGES)
    except (OSError, ValueError):
        return _SOME_PAGES


_SOME_PAGES = 64 << 10
AROUND = _fault_around()
_RANDOM, _DONT_NEED, _NO_HUGE_PAGES, _POPULATE_READ = 1, 4, 15, 22
_STEP = 8 << 20  # bytes populated in one call, so that a reader can be stopped between two

SUPPORTED = sys.platform == "linux"


class Mapped:
    """A mapped file that stays mapped as long as this object: its address is used without asking."""

    def __init__(self, map: mmap.mmap):
        self.map = map
        self._held = np.frombuffer(map, np.uint8)
        self.address, self.size = self._held.ctypes.data, len(map)


class Piece(NamedTuple):
    """Bytes `start` to `stop` of a mapped file."""

    mapped: Mapped
    start: int
    stop: int

    @property
    def place(self) -> tuple[int, int]:
        """What to sort by, for pieces that lie together to come together."""
        return self.mapped.address, self.start


def merge(pieces: Iterable[Piece], gap: int = AROUND) -> list[Piece]:
    """The pieces in order, those as one that lie less than `gap` apart."""
    found: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece.place):
        last = found[-1] if found else None
        if last and last.mapped is piece.mapped and piece.start - last.stop < gap:
            found[-1] = last._replace(stop=max(last.stop, piece.stop))
        else:
            found.append(piece)
    return found


def find_gaps(files: Iterable[Mapped], pieces: Iterable[Piece]) -> list[Piece]:
    """All of the files that is neither in a piece nor comes in with one."""
    found, taken = (
        [],
        [piece._replace(start=a, stop=b) for piece in merge(pieces) for a, b in [_round_out(piece, AROUND)]],
    )
    for mapped in files:
        at = 0
        for piece in (piece for piece in taken if piece.mapped is mapped):
            found.append(Piece(mapped, at, piece.start))
            at = max(at, piece.stop)
        found.append(Piece(mapped, at, mapped.size))
    return [piece for piece in found if piece.start < piece.stop]


def intersect(some: Iterable[Piece], others: Iterable[Piece]) -> list[Piece]:
    """What lies in one of `some` and in one of `others`."""
    pairs = [(a, b) for a in some for b in others if a.mapped is b.mapped]
    both = [Piece(a.mapped, max(a.start, b.start), min(a.stop, b.stop)) for a, b in pairs]
    return [piece for piece in both if piece.start < piece.stop]


def resident_bytes(pieces: Iterable[Piece]) -> int:
    """The most memory they take: whole pages, and what faults at their edges bring in."""
    return sum(stop - start for start, stop in (_round_out(piece, AROUND) for piece in merge(pieces)))


def advise_random(piece: Piece) -> None:
    """Only small parts of this are looked at, far from each other."""
    start, stop = _round_in(piece)
    _advise(piece.mapped.address + start, stop - start, _NO_HUGE_PAGES)
    _advise(piece.mapped.address + start, stop - start, _RANDOM)


def read_ahead(piece: Piece) -> int:
    """Have the first part of the piece read from disk into the page cache; the bytes that remain.

    Through this process's memory, at most AROUND of which it takes while it lasts: what a page fault reads
    comes in large pages, and what the system is told to read ahead in small ones, which are slow to map.
    """
    rest = populate(piece, AROUND)
    release([piece._replace(stop=piece.stop - rest)])
    return rest


def populate(piece: Piece, most: int = _STEP) -> int:
    """Bring the first part of the piece into this process's memory; the bytes that remain."""
    start, stop = _round_out(piece, mmap.PAGESIZE)
    stop = min(stop, start // AROUND * AROUND + most)
    address, size = piece.mapped.address + start, stop - start
    if not _advise(address, size, _POPULATE_READ):  # a kernel before 5.14
        np.add.reduce(piece.mapped._held[start : stop : mmap.PAGESIZE])
    return max(piece.stop - stop, 0)


def release(pieces: Iterable[Piece]) -> None:
    """Give the memory back. The file keeps what was in it, and the page cache most likely too: what is
    needed all the same comes back by itself.
    """
    for piece in pieces:
        start, stop = _round_out(piece, AROUND)
        _advise(piece.mapped.address + start, stop - start, _DONT_NEED)


def advise_dont_need(address: int, size: int) -> None:
    """Give back whole pages of memory."""
    _advise(address, size, _DONT_NEED)


def _round_out(piece: Piece, size: int) -> tuple[int, int]:
    """From where to where, in whole multiples of `size`."""
    return piece.start // size * size, min(-(-piece.stop // size) * size, piece.mapped.size)


def _round_in(piece: Piece) -> tuple[int, int]:
    start = -(-piece.start // mmap.PAGESIZE) * mmap.PAGESIZE
    return start, max(piece.stop // mmap.PAGESIZE * mmap.PAGESIZE, start)


def _advise(address: int, size: int, advice: int) -> bool:
    """False where the kernel does not know this advice."""
    if not size or not _madvise(address, size, advice):
        return True
    code = ctypes.get_errno()
    if code == errno.EINVAL:
        return False
    raise OSError(code, f"madvise({advice}) of {size} bytes: {os.strerror(code)}")


if SUPPORTED:
    _madvise = ctypes.CDLL(None, use_errno=True).madvise
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
