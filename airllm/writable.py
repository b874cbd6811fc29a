"""Result files of long computations: check before that they can be written, and flush them to disk."""

import os
import sys
from pathlib import Path


def refuse_unwritable(path: Path) -> None:
    """Raise OSError, with the reason, if `path` cannot be written. Missing folders are not an error.

    It creates and changes nothing, so it cannot find every reason.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected the name of a file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {folder} is not a folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise PermissionError(f"{path} cannot be written: no permission to write into {folder}")


def to_disk(path: Path) -> None:
    """Flush a new file to disk and drop it from the page cache, where writing has left small pages. A later
    read brings it back in large pages.
    """
    if sys.platform == "linux":
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
