"""The thread that owns the scheduler, and the streams of events that leave it.

The scheduler's methods are called from this thread alone. Requests come to it through a queue. The events of
a step go to the event loop in one call.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from airllm.engine.scheduling.requests import Event, Load, SequenceRequest
from airllm.engine.scheduling.scheduler import Scheduler

_log = logging.getLogger("airllm.serving")
_PAUSE = 0.05  # seconds after a step that failed: it may fail again
Result = TypeVar("Result")


class EngineStopped(RuntimeError):
    """The engine ends, or has ended, and takes no more requests."""


class EngineThread:
    """Runs the steps of a scheduler. `start`, `submit` and `run` are called from the event loop."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = time.monotonic):
        self._scheduler, self._clock = scheduler, clock
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[int, Stream] = {}
        self._thread = threading.Thread(target=self._run, name="airllm-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._step_start: float | None = None
        self.load: Load = scheduler.load()

    def start(self) -> None:
        """Begin; the running event loop gets the events."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """End after the current step. Returns whether the thread ended in time."""
        self._stopping = True
        self._commands.put(lambda: None)
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether requests can be computed."""
        return self._thread.is_alive() and not self._stopping

    @property
    def seconds_in_step(self) -> float:
        """How long the current step has taken; 0 between steps."""
        start = self._step_start
        return 0.0 if start is None else self._clock() - start

    async def submit(self, requests: Sequence[SequenceRequest]) -> Stream:
        """The events of these sequences, which are admitted together or not at all. Raises the scheduler's
        errors for requests that it refuses.
        """
        return await self._ask(lambda: self._add(requests), self._register, self._cancel)

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of a call between two steps."""
        return await self._ask(work, lambda result: result, lambda result: None)

    def cancel(self, ids: Sequence[int]) -> None:
        """Free the places of these sequences before the next step."""
        for id in ids:
            self._streams.pop(id, None)
        self._commands.put(lambda: self._cancel(ids))

    async def _ask(
        self, work: Callable[[], Any], accept: Callable[[Any], Any], undo: Callable[[Any], None]
    ) -> Any:
        """`accept(work())`: `work` runs between steps, `accept` in the event loop. If the caller was
        cancelled meanwhile, `undo` gets the result of `work`.
        """
        assert self._loop is not None
        if not self.is_alive:
            raise EngineStopped("the engine has ended")
        answer: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if answer.cancelled():
                if error is None:
                    self._commands.put(lambda: undo(result))
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(accept(result))

        def command() -> None:
            try:
                result = work()
            except Exception as error:
                self._post(settle, None, error)
            else:
                self._post(settle, result, None)

        self._commands.put(command)
        return await answer

    # -------------------------------------------------------------------------------- in the engine's thread

    def _run(self) -> None:
        while not self._stopping:
            self._obey()
            if not self._stopping and not self._scheduler.is_idle:
                self._step()

    def _obey(self) -> None:
        """Run all commands that wait. If nothing runs, wait for one."""
        try:
            command = self._commands.get(block=self._scheduler.is_idle)
            while True:
                command()
                command = self._commands.get_nowait()
        except queue.Empty:
            self.load = self._scheduler.load()

    def _step(self) -> None:
        self._step_start = self._clock()
        try:
            events = self._scheduler.step()
        except Exception as error:  # a defect of the scheduler: every sequence ends, the server goes on
            _log.exception("a step of the engine failed")
            self._post(self.fail_all, error)
            time.sleep(_PAUSE)
        else:
            if events:
                self._post(self._deliver, events)
            self.load = self._scheduler.load()
        finally:
            self._step_start = None

    def _add(self, requests: Sequence[SequenceRequest]) -> list[int]:
        ids: list[int] = []
        try:
            for request in requests:
                ids.append(self._scheduler.add(request))
        except Exception:
            self._cancel(ids)
            raise
        return ids

    def _cancel(self, ids: Sequence[int]) -> None:
        for id in ids:
            self._scheduler.cancel(id)

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call in the event loop."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self._stopping = True

    # -------------------------------------------------------------------------------- in the event loop

    def _register(self, ids: list[int]) -> Stream:
        stream = Stream(self, ids)
        self._streams |= dict.fromkeys(ids, stream)
        return stream

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            stream = self._streams.get(event.id)
            if stream is None:
                continue
            if event.reason:
                del self._streams[event.id]
            stream.put(event)

    def fail_all(self, error: Exception) -> None:
        """End all streams with an error, and free their places."""
        streams, ids = set(self._streams.values()), list(self._streams)
        self.cancel(ids)
        for stream in streams:
            stream.fail(error)


class Stream:
    """The events of the sequences of one request. Leaving the `with` cancels those that still run.

    A reader that is slow gets all events since its last call at once. Their number is limited by the length
    of the texts.
    """

    def __init__(self, thread: EngineThread, ids: Sequence[int]):
        self._thread = thread
        self._running = {id: index for index, id in enumerate(ids)}
        self._waiting: list[tuple[int, Event]] = []
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        index = self._running.pop(event.id) if event.reason else self._running[event.id]
        self._waiting.append((index, event))
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        self._running.clear()
        self._error = error
        self._arrived.set()

    @property
    def is_done(self) -> bool:
        """Whether all sequences have ended and all events were read."""
        return not self._running and not self._waiting

    async def read(self) -> list[tuple[int, Event]]:
        """The events since the last call, each with the index of its sequence; none at the end. Waits for
        one. Raises the error of a step that failed.
        """
        if not self._waiting and self._running:
            self._arrived.clear()
            await self._arrived.wait()
        if self._error is not None:
            raise self._error
        events, self._waiting = self._waiting, []
        return events

    def close(self) -> None:
        if self._running:
            self._thread.cancel(list(self._running))
            self._running.clear()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
