"""Pages of mapped files: prefetch, populate and release them with Linux's `madvise`.

`mmap.madvise` cannot be used: it holds the GIL while the disk is read.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from airllm.files.weight_file import FileMap


def _fault_around(largest: Path = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")) -> int:
    """Bytes around an address that a page fault brings in: some pages, or a whole page-cache folio."""
    try:
        return max(int(largest.read_text()), _SOME_PAGES)
    except (OSError, ValueError):
        return _SOME_PAGES


_SOME_PAGES = 64 << 10
AROUND = _fault_around()
HUGE_PAGE = max(AROUND, 2 << 20)
_RANDOM, _DONT_NEED, _HUGE_PAGES, _NO_HUGE_PAGES = 1, 4, 14, 15
_POPULATE_READ, _POPULATE_WRITE = 22, 23
_MAY_MOVE, _TO_ADDRESS, _KEEP_RANGE = 1, 2, 4  # of mremap
_STEP = 8 << 20  # bytes populated in one call, so that a reader can be stopped between two

SUPPORTED = sys.platform == "linux"


class Mapped:
    """A file that stays mapped as long as this object lives, so that its address stays valid."""

    def __init__(self, map: FileMap):
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


def advise_page_size(pieces: Iterable[Piece], huge: bool) -> None:
    """Advise whether the pieces are read in huge pages, as the whole file is at first."""
    for piece in pieces:
        start, stop = _round_in(piece)
        _advise(piece.mapped.address + start, stop - start, _HUGE_PAGES if huge else _NO_HUGE_PAGES)


def free_huge_pages(zones: Path = Path("/proc/buddyinfo")) -> int | None:
    """Bytes of the memory that is free in whole huge pages, without a page moved; None if unknown."""
    smallest = (HUGE_PAGE // mmap.PAGESIZE).bit_length() - 1
    try:
        counts = [line.split()[4:] for line in zones.read_text().splitlines()]
    except OSError:
        return None
    blocks = (int(n) << order for zone in counts for order, n in enumerate(zone) if order >= smallest)
    return sum(blocks) * mmap.PAGESIZE


def is_cached(piece: Piece) -> bool:
    """Whether most of the piece is in the page cache. The kernel tells it of files that this user may write;
    of others, it says yes.
    """
    start, stop = _round_in(piece)
    found = np.zeros((stop - start) // mmap.PAGESIZE, np.uint8)  # a byte for each page
    if _mincore(piece.mapped.address + start, stop - start, found.ctypes.data):
        raise _error(f"mincore of {stop - start} bytes")
    return int((found & 1).sum()) * 2 >= len(found)


def advise_random(piece: Piece) -> None:
    """Advise that only small, distant parts of this piece are read."""
    advise_page_size([piece], huge=False)
    start, stop = _round_in(piece)
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


def allocate(address: int, nbytes: int) -> None:
    """Allocate memory that will be written: faults of single pages would take twice as long. Kernels older
    than 5.14 leave it to those.
    """
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    _advise(start, -(-(address + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE - start, _POPULATE_WRITE)


def release(pieces: Iterable[Piece]) -> None:
    """Release the memory of the pieces. Their data stays in the file, and most likely in the page cache. A
    later access brings it back.
    """
    for piece in pieces:
        start, stop = _round_out(piece, AROUND)
        _advise(piece.mapped.address + start, stop - start, _DONT_NEED)


def release_to_disk(pieces: Iterable[Piece]) -> None:
    """Release the pieces, from the page cache too: the next access reads the disk.

    Without this, what passes through memory once would fill the page cache, and the kernel would evict what
    is needed again. Pages that are in this process's or another's memory stay in the cache.
    """
    pieces = list(pieces)
    release(pieces)
    for piece in pieces:
        start, stop = _round_in(piece)
        if start < stop:
            os.posix_fadvise(piece.mapped.map.descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)


def prefer_huge_pages(address: int, nbytes: int) -> None:
    """Advise that memory of this process, from a page's address on, is allocated in huge pages."""
    _advise(address, nbytes, _HUGE_PAGES)


def address_of(memory: memoryview) -> int:
    """The address of writable memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def move(address: int, to: int, nbytes: int) -> None:
    """Move whole pages of private memory to other addresses, in place of what is there. No byte is copied.
    The range that they leave stays taken, and empty: no other thread is given it meanwhile.
    """
    if _mremap(address, nbytes, nbytes, _MAY_MOVE | _TO_ADDRESS | _KEEP_RANGE, to) == _FAILED:
        raise _error(f"mremap of {nbytes} bytes")


def map_again(mapped: Mapped, start: int, stop: int) -> None:
    """Put the file's own pages back where `move` has put others, or has left none."""
    protection, flags = mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED
    address, descriptor = mapped.address + start, mapped.map.descriptor
    if _mmap(address, stop - start, protection, flags, descriptor, start) == _FAILED:
        raise _error(f"mmap of {stop - start} bytes")


@functools.cache
def can_move() -> bool:
    """Whether the kernel can `move` memory: Linux can from 5.7 on."""
    if not SUPPORTED:
        return False
    with mmap.mmap(-1, 2 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with memoryview(memory) as view:
            address = address_of(view)
        try:
            move(address, address + mmap.PAGESIZE, mmap.PAGESIZE)
        except OSError:
            return False
    return True


def blocks_read() -> int:
    """Disk blocks of 512 bytes that this process has read so far."""
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock


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
    if ctypes.get_errno() == errno.EINVAL:
        return False
    raise _error(f"madvise({advice}) of {size} bytes")


def _error(call: str) -> OSError:
    """That of the last call of the C library."""
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")


if SUPPORTED:
    _calls = ctypes.CDLL(None, use_errno=True)
    _madvise, _mincore, _mremap, _mmap = _calls.madvise, _calls.mincore, _calls.mremap, _calls.mmap
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    _mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    _mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    _mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    _mremap.restype = _mmap.restype = ctypes.c_void_p
    _FAILED, _MAP_FIXED = ctypes.c_void_p(-1).value, 0x10
