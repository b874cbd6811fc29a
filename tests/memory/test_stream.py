"""Groups of weights that pass through memory, and the thread that reads them."""

import os

import numpy as np
import pytest

from airllm.files import pages
from airllm.memory.prefetch import Reader
from airllm.memory.stream import DiskStream

pytestmark = pytest.mark.skipif(not pages.SUPPORTED, reason="a budget of memory needs Linux")


class RecordedReader:
    """A reader that has read a group as soon as it is asked for."""

    def __init__(self):
        self.in_memory, self.asked = set(), []

    def wait(self, group):
        assert group in self.in_memory

    drop = wait


class RecordedSlot:
    """Room for a group of one number."""

    group, in_use, closed = None, False, False

    def read(self, reader, pieces):
        (group,) = pieces
        assert self.group is None and group not in reader.in_memory
        self.group, self.reader = group, reader
        reader.in_memory |= {group}
        reader.asked.append(group)
        return group

    def enter(self):
        assert not self.in_use
        self.in_use = True

    def leave(self):
        self.reader.in_memory.remove(self.group)
        self.group, self.in_use = None, False

    def close(self):
        assert self.group is None
        self.closed = True


@pytest.mark.parametrize("groups", (1, 2, 3, 7))
@pytest.mark.parametrize("count", (1, 2))
def test_at_most_so_many_groups_are_in_memory_and_the_next_is_read_ahead(groups, count):
    reader, slots = RecordedReader(), [RecordedSlot() for _ in range(count)]
    passing = DiskStream(reader, [[i] for i in range(groups)], slots)
    rng = np.random.default_rng(groups)
    for leaves_out in [0] * 3 + [2] * 20:  # whole passes, then some that end early, as a prompt's rounds do
        passing.begin()
        before = len(reader.asked)
        for group in range(groups - rng.integers(0, leaves_out + 1)):
            passing.enter(group)
            assert [slot.group for slot in slots if slot.in_use] == [group]
            assert group in reader.in_memory and len(reader.in_memory) == min(count, groups)
            assert all(passing.holds(each) for each in reader.in_memory)
            if count == 2:
                assert (group + 1) % groups in reader.in_memory  # while this one is computed
            passing.leave(group)
            assert len(reader.in_memory) == min(count, groups)  # while those that stay are computed
        if not leaves_out:
            assert len(reader.asked) - before == groups
    passing.close()
    assert not reader.in_memory and all(slot.closed for slot in slots)


def test_a_forked_child_reads_for_itself():
    """It has no reader thread: it would wait for ever."""
    reader, done = Reader(), []
    monitor = pytest.MonkeyPatch()
    with monitor.context() as patch:
        patch.setattr("airllm.memory.prefetch.populate", lambda piece: done.append(piece) or 0)
        reader.wait(reader.fill([1]))
        child = os.fork()
        if not child:
            reader.wait(reader.fill([2]))
            os._exit(0 if done == [1, 2] else 1)
        assert os.waitpid(child, 0)[1] == 0
    reader.close()


def test_an_error_of_the_reader_comes_to_who_waits(monkeypatch):
    def fail(piece):
        raise OSError("no disk")

    monkeypatch.setattr("airllm.memory.prefetch.populate", fail)
    reader = Reader()
    with pytest.raises(OSError, match="no disk"):
        reader.wait(reader.fill([1]))
    reader.check()
    reader.drop(reader.fill([1]))
    reader.close()
