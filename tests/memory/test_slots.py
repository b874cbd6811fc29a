"""Memory that takes the place of pieces of a mapped file."""

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from airllm.files import pages
from airllm.files.pages import HUGE_PAGE, Mapped, Piece
from airllm.files.weight_file import map_file
from airllm.memory.prefetch import Reader
from airllm.memory.slots import MemorySlot, PageCacheSlot, open_slots

pytestmark = pytest.mark.skipif(not pages.can_move(), reason="this kernel cannot move memory")

SIZE = 6 * HUGE_PAGE + 12345  # ends within a page


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


@pytest.fixture
def reader():
    reader = Reader()
    yield reader
    reader.close()


def bytes_at(piece):
    """What a kernel reads at the piece's addresses in the map."""
    return pages.ctypes.string_at(piece.mapped.address + piece.start, piece.stop - piece.start)


def overwrite(path):
    """Other bytes in the same file, without a change of its size."""
    with path.open("r+b") as file:
        file.write(bytes(SIZE))


PIECES = {
    "one": [(5000, 70000)],
    "whole pages": [(4096, 8192)],
    "more than huge pages": [(HUGE_PAGE - 1, 3 * HUGE_PAGE + 1)],
    "the end of the file": [(SIZE - 20000, SIZE)],
    "all": [(0, SIZE)],
    "three": [(1, 2), (HUGE_PAGE, 2 * HUGE_PAGE), (5 * HUGE_PAGE + 3, SIZE)],
}


@pytest.mark.parametrize("case", PIECES)
@pytest.mark.parametrize("direct", (True, False))
def test_memory_takes_the_place_of_pieces_and_gives_it_back(case, direct, path, reader, monkeypatch):
    if not direct:  # as on a file system that has only the page cache
        monkeypatch.setattr(os, "O_DIRECT", 1 << 30)
        monkeypatch.setattr(os, "open", raise_invalid)
    mapped = Mapped(map_file(path))
    pieces = [Piece(mapped, *each) for each in PIECES[case]]
    expected, zeros = [bytes_at(piece) for piece in pieces], [bytes(b - a) for a, b in PIECES[case]]
    outside = bytes_at(Piece(mapped, 2 * HUGE_PAGE + 5000, 2 * HUGE_PAGE + 6000))
    (slot,) = open_slots([pieces], 1)
    assert isinstance(slot, MemorySlot)
    reader.wait(slot.read(reader, pieces))
    overwrite(path)
    assert [bytes_at(piece) for piece in pieces] == zeros  # the file, until the slot is entered
    slot.enter()
    assert [bytes_at(piece) for piece in pieces] == expected
    if case not in ("all", "more than huge pages"):
        assert bytes_at(Piece(mapped, 2 * HUGE_PAGE + 5000, 2 * HUGE_PAGE + 6000)) != outside
    slot.leave()
    assert [bytes_at(piece) for piece in pieces] == zeros
    slot.close()


def raise_invalid(*_):
    raise OSError(errno.EINVAL, "no direct reads")


def test_a_file_system_that_refuses_only_direct_reads(path, reader, monkeypatch):
    mapped, read = Mapped(map_file(path)), os.preadv

    def preadv(descriptor, buffers, offset):
        return read(descriptor, buffers, offset) if descriptor == mapped.map.descriptor else raise_invalid()

    monkeypatch.setattr(os, "preadv", preadv)
    piece = Piece(mapped, 100, SIZE)
    expected, slot = bytes_at(piece), open_slots([[piece]], 1)[0]
    reader.wait(slot.read(reader, [piece]))
    slot.enter()
    assert bytes_at(piece) == expected
    slot.close()


def test_a_slot_is_used_for_one_group_after_another_and_the_map_stays_in_as_many_parts(path, reader):
    mapped = Mapped(map_file(path))
    whole = Piece(mapped, 0, SIZE)
    expected = bytes_at(whole)
    groups = [
        [Piece(mapped, 9, HUGE_PAGE)],
        [Piece(mapped, HUGE_PAGE, 3 * HUGE_PAGE), Piece(mapped, SIZE - 1, SIZE)],
    ]
    (slot,) = open_slots(groups, 1)
    parts = set()
    for turn in range(20):
        pieces = groups[turn % 2]
        reader.wait(slot.read(reader, pieces))
        slot.enter()
        assert bytes_at(whole) == expected
        slot.leave()
        parts.add(len(Path("/proc/self/maps").read_text().splitlines()))
    slot.close()
    assert bytes_at(whole) == expected and max(parts) - min(parts) < 10


def test_a_slot_that_is_closed_in_use_gives_the_file_back(path, reader):
    piece = Piece(Mapped(map_file(path)), 0, SIZE)
    (slot,) = open_slots([[piece]], 1)
    reader.wait(slot.read(reader, [piece]))
    slot.enter()
    overwrite(path)
    slot.close()
    assert bytes_at(piece) == bytes(SIZE)


def test_a_file_that_has_become_shorter_is_an_error(path, reader):
    piece = Piece(Mapped(map_file(path)), 0, SIZE)
    (slot,) = open_slots([[piece]], 1)
    os.truncate(path, HUGE_PAGE)
    with pytest.raises(OSError, match=f"ends at byte {HUGE_PAGE}, expected {SIZE} bytes"):
        reader.wait(slot.read(reader, [piece]))
    slot.close()


def test_a_kernel_that_cannot_move_memory_reads_through_the_page_cache(path, reader, monkeypatch):
    monkeypatch.setattr(pages, "can_move", lambda: False)
    piece = Piece(Mapped(map_file(path)), 0, SIZE)
    (slot,) = open_slots([[piece]], 1)
    assert isinstance(slot, PageCacheSlot) and not slot.allocated_bytes
    reader.wait(slot.read(reader, [piece]))
    slot.enter()
    slot.leave()
    slot.close()


def test_memory_that_cannot_be_moved_is_an_error():
    with pytest.raises(OSError, match="mremap of 4096 bytes: "):
        pages.move(1 << 40, 1 << 41, 4096)


@pytest.mark.parametrize("closes", (True, False))
def test_a_slot_that_is_closed_or_forgotten_leaves_no_file_open(closes, path):
    piece, reader = Piece(Mapped(map_file(path)), 0, SIZE), Reader()
    gc.collect()  # maps of tests before
    before = len(os.listdir("/proc/self/fd"))
    (slot,) = open_slots([[piece]], 1)
    reader.wait(slot.read(reader, [piece]))
    assert len(os.listdir("/proc/self/fd")) in (before, before + 1)  # tmpfs may have no direct reads
    slot.enter()
    if closes:
        slot.close()
    reader.close()
    del slot, reader  # a reader keeps its last task
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
