"""What a device backend counts by itself: bytes that cross the bus, launches, waits, memory."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Counts:
    """What a backend has done so far in this process. `a - b` is what it did between two of them.

    `uploaded` and `downloaded` are bytes from host to device memory and back. `waits`: how often the host
    waited for the device. `submits`: how often commands were handed to the driver. `replayed`: how many of
    the launches were recorded before. `resident`: bytes of the arrays that are on the device now.
    """

    uploaded: int = 0
    downloaded: int = 0
    launches: int = 0
    waits: int = 0
    submits: int = 0
    replayed: int = 0
    resident: int = 0

    def __sub__(self, before: Counts) -> Counts:
        mine, theirs = asdict(self), asdict(before)
        return Counts(**{name: mine[name] - theirs[name] for name in mine})


class Counters:
    """Thread-safe counters."""

    def __init__(self) -> None:
        self._values = asdict(Counts())
        # Reentrant: freeing an array counts, and the collector may free one inside `add`.
        self._lock = threading.RLock()

    def add(self, **more: int) -> None:
        """Add to some counters."""
        with self._lock:
            for name, value in more.items():
                self._values[name] += value

    def read(self) -> Counts:
        """The counts of now."""
        with self._lock:
            return Counts(**self._values)
