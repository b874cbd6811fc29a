"""A lock on an open file, by which processes know that another one uses it. It ends with the process."""

from __future__ import annotations

import sys
from typing import BinaryIO

if sys.platform == "win32":
    import msvcrt

    # Windows keeps others from reading the bytes that are locked: this one is beyond the end of every cache.
    _BEYOND = 1 << 42

    def lock(file: BinaryIO) -> None:
        """Lock the file. OSError if another open file has the lock."""
        at = file.tell()
        file.seek(_BEYOND)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        finally:
            file.seek(at)

else:
    import fcntl

    def lock(file: BinaryIO) -> None:
        """Lock the file. OSError if another open file has the lock."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
