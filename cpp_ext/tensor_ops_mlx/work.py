"""A count of what MLX was given to do."""

import collections
import threading

_counts: collections.Counter[str] = collections.Counter()
_lock = threading.Lock()


def count(what: str) -> None:
    with _lock:
        _counts[what] += 1


def calls() -> int:
    """Ops given to MLX so far in this process."""
    return _counts["call"]


def copies() -> int:
    """NumPy arrays copied into MLX's memory so far. Results are NumPy's views of it, and not copied."""
    return _counts["copy"]
