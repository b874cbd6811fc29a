"""Memory behind which nothing may be read, for tests."""

import ctypes
import mmap
import sys

import numpy as np
import pytest


@pytest.fixture
def before_a_hole():
    """Makes arrays of bytes behind which nothing may be read."""
    if not sys.platform.startswith("linux"):
        pytest.skip("mprotect as Linux has it")
    page, libc, maps = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True), []

    def make(like):
        pages = -(-like.nbytes // page) * page
        maps.append(mmap.mmap(-1, pages + page))
        hole = ctypes.addressof(ctypes.c_char.from_buffer(maps[-1])) + pages
        assert libc.mprotect(ctypes.c_void_p(hole), page, 0) == 0  # PROT_NONE
        made = np.frombuffer(maps[-1], np.uint8, like.nbytes, pages - like.nbytes).reshape(like.shape)
        made[...] = like
        return made

    return make
