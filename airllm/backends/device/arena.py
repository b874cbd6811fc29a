"""How much memory the arrays of one `DeviceOps` take on its device, and how much they may take."""

from __future__ import annotations

import threading

from airllm.backends.device.counters import Counters
from airllm.backends.device.faults import MEMORY, DeviceFault


class Arena:
    """Counts the bytes of arrays: `now`, and at their `peak`. `limit`: the most they may take, or None.

    What it counts, it also adds to the backend's `counters`. `label` is the device's line in messages.
    """

    def __init__(self, counters: Counters, label: str):
        self.now = self.peak = 0
        self.limit: int | None = None
        self._counters, self._label = counters, label
        self._lock = threading.RLock()  # reentrant: the collector may free an array inside `add`

    def require(self, nbytes: int) -> None:
        """Raise DeviceFault if there is no room for so many bytes more."""
        if self.limit is not None and self.now + nbytes > self.limit:
            found = f"an array of {nbytes} bytes comes to {self.now} of others, and device_memory is"
            raise DeviceFault(MEMORY, self._label, f"{found} {self.limit}")

    def add(self, *, resident: int) -> None:
        """Count so many bytes more, or less."""
        with self._lock:
            self.now += resident
            self.peak = max(self.peak, self.now)
        self._counters.add(resident=resident)
