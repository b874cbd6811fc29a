"""The state of a backend's driver: the process that started it, and its counts of launches and copies."""

import os
import threading

from airllm.backends.device.counters import Counters


class Count:
    """A thread-safe counter."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        with self._lock:
            self.value += 1


class Driver:
    """A driver that does not survive a fork: its threads are gone, and its handles are the parent's.

    `name` is its name in errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.launched, self.copied = Count(), Count()
        self.counters = Counters()
        self._started_in: int | None = None

    @property
    def started(self) -> bool:
        """Whether it was started, in this process or in one from which this one was forked."""
        return self._started_in is not None

    def start(self) -> None:
        """Record that this process starts the driver; RuntimeError in a process forked after the start."""
        self._started_in = self._started_in or os.getpid()
        if self._started_in != os.getpid():
            raise RuntimeError(
                f"{self.name} was started before this process was forked and cannot run in it "
                '(use multiprocessing.get_context("spawn"))'
            )

    def calls(self) -> int:
        """Kernels launched so far in this process."""
        return self.launched.value

    def copies(self) -> int:
        """Copies made so far between host and device memory, in either direction."""
        return self.copied.value
