"""A thread that prefetches weights from disk while the layers before them run."""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue

from airllm.files.pages import Piece, populate, read_ahead

_Task = tuple[list[Piece], bool]


class Reader:
    """Carries out requests in order, until `close`. Its thread starts with the first request.

    An error in the thread is raised by the next call.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._state = _State()
        self._thread: threading.Thread | None = None
        self._stop = weakref.finalize(self, _stop, self._tasks, self._state)

    def ask(self, pieces: list[Piece]) -> None:
        """Read these pieces into the page cache."""
        self._put(pieces, False)

    def fill(self, pieces: list[Piece]) -> None:
        """Bring these pieces into this process's memory."""
        self._put(pieces, True)

    def check(self) -> None:
        """Raise the thread's error, if there is one."""
        if error := self._state.error:
            self._state.error = None
            raise error

    def close(self) -> None:
        """Stop the thread and wait for it. Pending requests are dropped."""
        self._stop()
        if self._thread:
            self._thread.join()

    def _put(self, pieces: list[Piece], fill: bool) -> None:
        self.check()
        if not self._thread:
            # The thread refers to the queue, not to this object, so a forgotten engine still ends its thread.
            work = (self._tasks, self._state)
            self._thread = threading.Thread(target=_read, args=work, name="airllm reader", daemon=True)
            self._thread.start()
        self._tasks.put((pieces, fill))


class _State:
    """State that the thread shares with its owner."""

    stopped = False
    error: BaseException | None = None


def _stop(tasks: SimpleQueue[_Task | None], state: _State) -> None:
    state.stopped = True
    tasks.put(None)


def _read(tasks: SimpleQueue[_Task | None], state: _State) -> None:
    while (task := tasks.get()) and not state.stopped:
        try:
            _do(*task, state)
        except Exception as error:  # the next call raises it
            state.error = error


def _do(pieces: list[Piece], fill: bool, state: _State) -> None:
    step = populate if fill else read_ahead
    for piece in pieces:
        while not state.stopped and (rest := step(piece)):
            piece = piece._replace(start=piece.stop - rest)
