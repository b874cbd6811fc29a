"""A thread that prefetches weights from disk while the layers before them run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from airllm.files.pages import Piece, populate, read_ahead


class Task:
    """A request to a reader: pieces to bring in, step by step, until it is cancelled."""

    def __init__(self, pieces: list[Piece], step: Callable[[Piece], int]):
        self._pieces, self._step = pieces, step
        self._done, self._cancelled = threading.Event(), False
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def run(self) -> None:
        """Bring in the pieces. An error is kept for `Reader.wait`."""
        try:
            for piece in self._pieces:
                while not self._cancelled and (rest := self._step(piece)):
                    piece = piece._replace(start=piece.stop - rest)
        except Exception as error:
            self.error = error
        self._done.set()

    def cancel(self) -> None:
        """End the task at its next step."""
        self._cancelled = True

    def wait(self) -> None:
        """Return when the task has ended."""
        self._done.wait()


class Reader:
    """Carries out requests in order, until `close`. Its thread starts with the first request.

    An error in the thread is raised by `wait`, or by the next call if nobody waits.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._state = _State()
        self._thread: threading.Thread | None = None
        self._stop = weakref.finalize(self, _stop, self._tasks, self._state)

    def ask(self, pieces: list[Piece]) -> Task:
        """Read these pieces into the page cache."""
        return self._put(Task(pieces, read_ahead))

    def fill(self, pieces: list[Piece]) -> Task:
        """Bring these pieces into this process's memory."""
        return self._put(Task(pieces, populate))

    def read(self, pieces: list[Piece], step: Callable[[Piece], int]) -> Task:
        """Read these pieces by `step`: it reads the first part of one, and returns the bytes that remain."""
        return self._put(Task(pieces, step))

    def wait(self, task: Task) -> None:
        """Return when the task is done; raise its error. Without the thread, it is done here: a forked child
        has only the thread that forked.
        """
        if not task.done and not (self._thread and self._thread.is_alive()):
            task.run()
        task.wait()
        if error := task.error:
            task.error = None
            raise error

    def drop(self, task: Task) -> None:
        """Cancel the task and return when it has ended. Its error does not matter any more."""
        task.cancel()
        with suppress(OSError):
            self.wait(task)

    def check(self) -> None:
        """Raise the error of a task that nobody waited for, if there is one."""
        if (task := self._state.failed) and (error := task.error):
            task.error = None
            raise error

    def close(self) -> None:
        """Stop the thread and wait for it. Pending requests are cancelled."""
        self._stop()
        if self._thread:
            self._thread.join()

    def _put(self, task: Task) -> Task:
        self.check()
        if not self._thread:
            # The thread refers to the queue, not to this object, so a forgotten engine still ends its thread.
            work = (self._tasks, self._state)
            self._thread = threading.Thread(target=_read, args=work, name="airllm reader", daemon=True)
            self._thread.start()
        self._tasks.put(task)
        return task


class _State:
    """State that the thread shares with its owner."""

    stopped = False
    current: Task | None = None
    failed: Task | None = None


def _stop(tasks: SimpleQueue[Task | None], state: _State) -> None:
    state.stopped = True
    if task := state.current:
        task.cancel()
    tasks.put(None)


def _read(tasks: SimpleQueue[Task | None], state: _State) -> None:
    while task := tasks.get():
        state.current = task
        if state.stopped:
            task.cancel()
        task.run()
        if task.error:
            state.failed = task
