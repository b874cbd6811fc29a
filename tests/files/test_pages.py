"""Pages of mapped files: read ahead, brought in, let go."""

import mmap
import re
from pathlib import Path

import pytest

from airllm.files import pages
from airllm.files.pages import Mapped, Piece
from airllm.files.weight_file import map_file
from airllm.memory.prefetch import Reader
from airllm.writable import to_disk

pytestmark = pytest.mark.skipif(not pages.SUPPORTED, reason="pages are let go by Linux's madvise")
SIZE = 5 * pages.AROUND + 12345


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(SIZE))
    to_disk(path)  # and out of the page cache, where the file system has one
    return Mapped(map_file(path))


def resident(file: Mapped) -> int:
    """Bytes of the mapped file that are in this process's memory."""
    for area in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        if area.startswith(f"{file.address:x}-"):
            return int(re.search(r"^Rss: +(\d+) kB", area, re.MULTILINE)[1]) << 10
    raise AssertionError("the file is not mapped where it is")


def read(ask, pieces: list[Piece]) -> None:
    reader = Reader()
    ask(reader, pieces)
    reader._tasks.put(None)  # all that was asked for first
    reader._thread.join()
    reader.check()


def test_what_is_read_ahead_does_not_stay_in_memory(file):
    read(Reader.ask, [Piece(file, 0, SIZE)])
    assert resident(file) == 0


def test_what_is_brought_in_stays_until_it_is_let_go(file):
    start, stop = pages.AROUND + 100, 3 * pages.AROUND - 100
    read(Reader.fill, [Piece(file, start, stop)])
    assert stop - start <= resident(file) <= 2 * pages.AROUND
    pages.release([Piece(file, start, stop)])
    assert resident(file) == 0


def test_a_step_ends_where_pages_do(file):
    piece, steps = Piece(file, 1000, SIZE), []
    while rest := pages.read_ahead(piece):
        piece = piece._replace(start=SIZE - rest)
        steps.append(piece.start)
    assert steps == [pages.AROUND * i for i in range(1, 6)]


def test_what_is_in_the_page_cache_is_known(file):
    first, whole = Piece(file, 0, pages.AROUND), Piece(file, 0, SIZE)
    read(Reader.ask, [first])
    assert pages.is_cached(first)
    pages.release_to_disk([whole])
    if not pages.is_cached(first):  # the file system has a page cache that lets go
        read(Reader.ask, [first])
        assert pages.is_cached(first) and not pages.is_cached(whole)


def test_free_huge_pages_are_those_of_all_zones(tmp_path):
    order = (pages.HUGE_PAGE // mmap.PAGESIZE).bit_length() - 1
    zones = tmp_path / "buddyinfo"
    lines = (f"Node {i}, zone {name:>8} " + "7 " * order + "2 1" for i, name in enumerate(("DMA", "Normal")))
    zones.write_text("\n".join(lines) + "\n")
    assert pages.free_huge_pages(zones) == 8 * pages.HUGE_PAGE
    assert pages.free_huge_pages(tmp_path / "nothing") is None


def test_what_was_written_is_the_same_afterwards(tmp_path):
    path = tmp_path / "written"
    path.write_bytes(b"weights" * mmap.PAGESIZE)
    to_disk(path)
    assert path.read_bytes() == b"weights" * mmap.PAGESIZE
