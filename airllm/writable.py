"""Files that long work results in: whether they can be written, asked before it; their way to disk."""

import os
import sys
from pathlib import Path


def refuse_unwritable(path: Path) -> None:
    """OSError that says why, if `path` cannot be written; folders on the way to it may still be missing.

    Nothing is made or changed: what only the attempt would show stays unseen.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected the name of a file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {folder} is no folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise PermissionError(f"{path} cannot be written: no permission to write into {folder}")


def to_disk(path: Path) -> None:
    """A file that was just written goes to disk and out of the page cache, where writing it has left small
    pages: when it is read, it comes back in large ones.
    """
    if sys.platform == "linux":
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
