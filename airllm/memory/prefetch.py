"""A thread that asks the disk for weights while those before are computed with."""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue

from airllm.files.pages import Piece, populate, read_ahead

_Task = tuple[list[Piece], bool]


class Reader:
    """Reads what it is told to, one thing after the other, until `close`; its thread starts with the first.

    What goes wrong in the thread is raised by the next call.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._state = _State()
        self._thread: threading.Thread | None = None
        self._stop = weakref.finalize(self, _stop, self._tasks, self._state)

    def ask(self, pieces: list[Piece]) -> None:
        """Read these into the page cache."""
        self._put(pieces, False)

    def fill(self, pieces: list[Piece]) -> None:
        """Bring these into this process's memory."""
        self._put(pieces, True)

    def check(self) -> None:
        """Raise what went wrong in the thread."""
        if error := self._state.error:
            self._state.error = None
            raise error

    def close(self) -> None:
        """End the thread and wait for it. Reading ahead is over; what was asked for may not be there."""
        self._stop()
        if self._thread:
            self._thread.join()

    def _put(self, pieces: list[Piece], fill: bool) -> None:
        self.check()
        if not self._thread:
            # The thread knows the queue, not this object: an engine that is forgotten ends its thread.
            work = (self._tasks, self._state)
            self._thread = threading.Thread(target=_read, args=work, name="airllm reader", daemon=True)
            self._thread.start()
        self._tasks.put((pieces, fill))


class _State:
    """What the thread and its owner tell each other."""

    stopped = False
    error: BaseException | None = None


def _stop(tasks: SimpleQueue[_Task | None], state: _State) -> None:
    state.stopped = True
    tasks.put(None)


def _read(tasks: SimpleQueue[_Task | None], state: _State) -> None:
    while (task := tasks.get()) and not state.stopped:
        try:
            _do(*task, state)
        except Exception as error:  # the caller's to handle
            state.error = error


def _do(pieces: list[Piece], fill: bool, state: _State) -> None:
    step = populate if fill else read_ahead
    for piece in pieces:
        while not state.stopped and (rest := step(piece)):
            piece = piece._replace(start=piece.stop - rest)
