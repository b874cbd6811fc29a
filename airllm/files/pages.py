"""Pages of mapped files: prefetch, populate and release them with Linux's `madvise`.

`mmap.madvise` cannot be used: it holds the GIL while the disk is read.
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
    """Bytes around an address that a page fault brings in: some pages, or a whole page-cache folio."""
    try:
        return max(int(largest.read_text()), _SOME_PAGES)
    except (OSError, ValueError):
        return _SOME_PAGES


_SOME_PAGES = 64 << 10
AROUND = _fault_around()
_RANDOM, _DONT_NEED, _NO_HUGE_PAGES, _POPULATE_READ, _POPULATE_WRITE = 1, 4, 15, 22, 23
_STEP = 8 << 20  # bytes populated in one call, so that a reader can be stopped between two

SUPPORTED = sys.platform == "linux"


class Mapped:
    """A file that stays mapped as long as this object lives, so that its address stays valid."""

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
        """The sort key that puts neighbouring pieces next to each other."""
        return self.mapped.address, self.start


def merge(pieces: Iterable[Piece], gap: int = AROUND) -> list[Piece]:
    """Sort the pieces, and join those less than `gap` bytes apart."""
    found: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: piece.place):
        last = found[-1] if found else None
        if last and last.mapped is piece.mapped and piece.start - last.stop < gap:
            found[-1] = last._replace(stop=max(last.stop, piece.stop))
        else:
            found.append(piece)
    return found


def find_gaps(files: Iterable[Mapped], pieces: Iterable[Piece]) -> list[Piece]:
    """All parts of the files that neither are in a piece nor are brought in with one."""
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
    """The bytes that are in one of `some` and in one of `others`."""
    pairs = [(a, b) for a in some for b in others if a.mapped is b.mapped]
    both = [Piece(a.mapped, max(a.start, b.start), min(a.stop, b.stop)) for a, b in pairs]
    return [piece for piece in both if piece.start < piece.stop]


def resident_bytes(pieces: Iterable[Piece]) -> int:
    """The most bytes of memory that the pieces take: whole pages, and what faults at their edges bring in."""
    return sum(stop - start for start, stop in (_round_out(piece, AROUND) for piece in merge(pieces)))


def advise_random(piece: Piece) -> None:
    """Advise that only small, distant parts of this piece are read."""
    start, stop = _round_in(piece)
    _advise(piece.mapped.address + start, stop - start, _NO_HUGE_PAGES)
    _advise(piece.mapped.address + start, stop - start, _RANDOM)


def read_ahead(piece: Piece) -> int:
    """Read the first part of the piece from disk into the page cache; returns the bytes that remain.

    It populates and releases at most AROUND bytes of this process's memory. A page fault reads large pages;
    the kernel's readahead would read small ones, which are slow to map.
    """
    rest = populate(piece, AROUND)
    release([piece._replace(stop=piece.stop - rest)])
    return rest


def populate(piece: Piece, most: int = _STEP) -> int:
    """Bring the first part of the piece into this process's memory; returns the bytes that remain."""
    start, stop = _round_out(piece, mmap.PAGESIZE)
    stop = min(stop, start // AROUND * AROUND + most)
    address, size = piece.mapped.address + start, stop - start
    if not _advise(address, size, _POPULATE_READ):  # the kernel is older than 5.14
        np.add.reduce(piece.mapped._held[start : stop : mmap.PAGESIZE])
    return max(piece.stop - stop, 0)


def allocate(piece: Piece) -> None:
    """Allocate the memory of a piece that will be written: faults of single pages would take twice as long.
    Kernels older than 5.14 leave it to those.
    """
    start, stop = _round_out(piece, mmap.PAGESIZE)
    _advise(piece.mapped.address + start, stop - start, _POPULATE_WRITE)


def release(pieces: Iterable[Piece]) -> None:
    """Release the memory of the pieces. Their data stays in the file, and most likely in the page cache. A
    later access brings it back.
    """
    for piece in pieces:
        start, stop = _round_out(piece, AROUND)
        _advise(piece.mapped.address + start, stop - start, _DONT_NEED)


def _round_out(piece: Piece, size: int) -> tuple[int, int]:
    """The range of the piece, rounded outwards to multiples of `size`."""
    return piece.start // size * size, min(-(-piece.stop // size) * size, piece.mapped.size)


def _round_in(piece: Piece) -> tuple[int, int]:
    start = -(-piece.start // mmap.PAGESIZE) * mmap.PAGESIZE
    return start, max(piece.stop // mmap.PAGESIZE * mmap.PAGESIZE, start)


def _advise(address: int, size: int, advice: int) -> bool:
    """Call madvise; False if the kernel does not support this advice."""
    if not size or not _madvise(address, size, advice):
        return True
    code = ctypes.get_errno()
    if code == errno.EINVAL:
        return False
    raise OSError(code, f"madvise({advice}) of {size} bytes: {os.strerror(code)}")


if SUPPORTED:
    _madvise = ctypes.CDLL(None, use_errno=True).madvise
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
