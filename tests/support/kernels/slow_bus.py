"""A device whose uploads take as long as on a bus of a given rate, without work of the processor."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any

import numpy as np


class Bus:
    """Transfers at `rate` bytes per second, one after the other."""

    def __init__(self, rate: float):
        self.rate, self._free = rate, 0.0

    def carry(self, pieces: list[np.ndarray], since: float) -> None:
        """Return when a transfer has ended that could begin at a time."""
        self._free = max(self._free, since) + sum(each.nbytes for each in pieces) / self.rate
        time.sleep(max(self._free - time.perf_counter(), 0))


class SlowOpenCL:
    """Uploads of an `OpenCLPlace` beside its launches, in order, by a thread."""

    def __init__(self, place: Any, rate: float):
        self.place, self._bus = place, Bus(rate)
        self._work: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()
        place.begin_upload = self.begin_upload

    def begin_upload(self, buffer: Any, pieces: list[np.ndarray], after: Any) -> Any:
        import pyopencl as cl

        done = cl.UserEvent(self.place.engine.context)
        self._work.put((done, buffer, pieces, after, time.perf_counter()))
        self.place.counters.add(uploaded=sum(each.nbytes for each in pieces))
        return done

    def _run(self) -> None:
        import pyopencl as cl

        queue, complete = cl.CommandQueue(self.place.engine.context), cl.command_execution_status.COMPLETE
        while True:
            done, buffer, pieces, after, since = self._work.get()
            if after is not None and after.command_execution_status != complete:
                after.wait()
                since = time.perf_counter()
            cl.enqueue_copy(queue, buffer, np.concatenate(pieces))
            self._bus.carry(pieces, since)
            done.set_status(complete)
