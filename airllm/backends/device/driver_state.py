"""What is known of a backend's driver: the process that it was started in, and the work that it was given."""

import os
import threading


class Count:
    """A number that several threads raise."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        with self._lock:
            self.value += 1


class Driver:
    """A driver that does not live on in a forked process: its threads are gone, its handles are the parent's.

    `name` is what errors call it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.launched, self.copied = Count(), Count()
        self._started_in: int | None = None

    @property
    def started(self) -> bool:
        """Whether it was started, in this process or in one that this one was forked from."""
        return self._started_in is not None

    def start(self) -> None:
        """Says that a call starts it, unless one has; RuntimeError in a process forked after that."""
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
        """Copies made so far between the host's memory and a device's, in either direction."""
        return self.copied.value
