"""A model that the kernels of one process share, each on a device of its own: what MPI does for processes.

Each has a thread, in which its part of every step is computed; the threads meet where all parts are added up.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

_KEPT = 64 << 20  # bytes of results that wait for kernels which are behind
_WANTED = (
    "world_size has value {size} and this process has no kernel of mpi_rank {missing}, expected one of each: "
    "make them all before the first compile() or step(), or run `mpiexec -n {size} python -m mpi4py "
    'program.py`, which starts {size} of it (it needs "airllm-tensor-ops[mpi]")'
)
_gathering: weakref.WeakValueDictionary[Hashable, Group] = weakref.WeakValueDictionary()
_joining = threading.Lock()


class Meeting:
    """Where the threads of `size` ranks come together."""

    def __init__(self, size: int):
        self._barrier = threading.Barrier(size)
        self._parts: list[np.ndarray] = [np.empty(0, np.float32)] * size

    def exchange(
        self, rank: int, part: np.ndarray, use: Callable[[list[np.ndarray]], np.ndarray]
    ) -> np.ndarray:
        """What `use` makes of the parts of all, which stay as they are until every rank has made it."""
        self._parts[rank] = part
        self._barrier.wait()
        result = use(self._parts)
        self._barrier.wait()
        return result

    def break_off(self) -> None:
        """Those that wait, or will, get BrokenBarrierError."""
        self._barrier.abort()

    def begin_again(self) -> None:
        """When none waits."""
        self._barrier.reset()


@dataclass
class Rank:
    """One of those that share a model: `airllm.engine.parallel.tensor_parallel.Processes`, in one process."""

    rank: int
    size: int
    meeting: Meeting

    def all_reduce(self, array: np.ndarray) -> None:
        """An array of float32 becomes the sum of those that all have, in place: in one order, so that all
        have the same bits.
        """
        array[...] = self.meeting.exchange(self.rank, array, lambda parts: np.sum(parts, axis=0))

    def gather(self, part: np.ndarray, counts: list[int]) -> np.ndarray:
        """The parts of all, float32, `counts` values each, one after the other."""
        return self.meeting.exchange(self.rank, part, np.concatenate)

    def on_this_machine(self) -> int:
        """How many of them share this machine's processors."""
        return self.size


class Member(Protocol):
    """A kernel of a group."""

    def carry_out(self, name: str, *arguments: Any) -> Any:
        """Its part of a step."""


@dataclass
class _Step:
    """A step that all ranks have taken, and what came of it for those that have not asked yet."""

    call: tuple[Any, ...]
    results: list[Any]
    error: BaseException | None
    waiting: set[int]

    @property
    def nbytes(self) -> int:
        return sum(getattr(result, "nbytes", 0) for result in self.results)


class Group:
    """The kernels of one process that share a model. All take the same steps: the first to ask for one has
    all parts computed, the others then get what came of it. So they may be called in turn, or by threads.

    `place(rank)` is called first in the rank's thread: it chooses the device.
    """

    def __init__(self, size: int, place: Callable[[int], None]):
        self.size, self.meeting = size, Meeting(size)
        self._members: dict[int, weakref.ref[Any]] = {}
        self._place = place
        self._threads: list[ThreadPoolExecutor] = []  # none until all are prepared
        self._lock = threading.Lock()
        self._steps: list[_Step] = []
        self._first = 0  # number of the first of these steps
        self._at = [0] * size  # number of each rank's next step
        self._prepared = False
        self._broken = ""

    def join(self, rank: int, member: Member) -> None:
        """A kernel is this rank."""
        self._members[rank] = weakref.ref(member)

    def is_missing(self, rank: int) -> bool:
        """Whether a kernel may still become this rank."""
        return not (self._threads or self._broken or self._member(rank))

    def prepare(self) -> None:
        """What all kernels do before the first step, whichever asks first. ValueError if some are missing."""
        with self._lock:
            if self._prepared:
                return
            if missing := [rank for rank in range(self.size) if self._member(rank) is None]:
                raise ValueError(_WANTED.format(size=self.size, missing=", ".join(map(str, missing))))
            _, error = self._compute_all(("open",))
            if error is not None:
                raise error
            self._prepared = True

    def take(self, rank: int, name: str, *arguments: Any) -> Any:
        """What this step gives to a rank. ValueError where the others have taken another one."""
        call = (name, *arguments)
        with self._lock:
            step = self._step(rank) or self._run_on_all(call)
            if step.call != call:
                expected = f"{_format_call(step.call)}, the step that the others have taken"
                raise ValueError(f"mpi_rank={rank} would take {_format_call(call)}, expected {expected}")
            self._at[rank] += 1
            step.waiting.discard(rank)
            result = step.results[rank]
            step.results[rank] = None
            self._forget()
        if step.error is not None:
            raise step.error
        return result

    def _step(self, rank: int) -> _Step | None:
        """The rank's next step, if others have taken it; ValueError if it is forgotten already."""
        at = self._at[rank] - self._first
        if at < 0:
            found = f"mpi_rank={rank} is {self._first + len(self._steps) - self._at[rank]} steps behind"
            raise ValueError(f"{found}, expected all kernels to take the same steps, in turn or at once")
        return self._steps[at] if at < len(self._steps) else None

    def _run_on_all(self, call: tuple[Any, ...]) -> _Step:
        step = _Step(call, *self._compute_all(call), set(range(self.size)))
        self._steps.append(step)
        return step

    def _compute_all(self, call: tuple[Any, ...]) -> tuple[list[Any], BaseException | None]:
        """The results of all ranks, or why there are none."""
        if self._broken:
            raise RuntimeError(f"the kernels that share this model broke off ({self._broken}): make others")
        started = [self._thread(rank).submit(self._part, rank, call) for rank in range(self.size)]
        try:
            wait(started)
        finally:  # Ctrl-C does not leave ranks at different steps
            wait(started)
        errors = [error for future in started if (error := future.exception())]
        if not errors:
            return [future.result() for future in started], None
        first = next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
        if len(errors) == self.size and all(type(error) is type(first) for error in errors):
            self.meeting.begin_again()  # all have refused it: nothing has changed
        else:
            self._broken = f"{type(first).__name__}: {first}"
        return [None] * self.size, first

    def _part(self, rank: int, call: tuple[Any, ...]) -> Any:
        try:
            member = self._member(rank)
            if member is None:
                raise RuntimeError(f"the kernel of mpi_rank={rank} is gone, expected all to be kept")
            return member.carry_out(*call)
        except BaseException:
            self.meeting.break_off()
            raise

    def _member(self, rank: int) -> Any:
        """The kernel of a rank; None if there is none, or none any more."""
        found = self._members.get(rank)
        return found and found()

    def _thread(self, rank: int) -> ThreadPoolExecutor:
        if not self._threads:
            self._threads = [
                ThreadPoolExecutor(1, f"airllm rank {r}", self._place, (r,)) for r in range(self.size)
            ]
        return self._threads[rank]

    def _forget(self) -> None:
        """Steps that all have asked for; and the oldest, where kernels are too far behind."""
        kept = sum(step.nbytes for step in self._steps)
        while self._steps and (not self._steps[0].waiting or kept > _KEPT):
            kept -= self._steps.pop(0).nbytes
            self._first += 1

    def leave(self, rank: int) -> None:
        """A kernel is closed: the others cannot go on."""
        with self._lock:
            self._broken = self._broken or f"that of mpi_rank={rank} is closed"
            for thread in self._threads:
                thread.shutdown(wait=False)


def join_group(key: Hashable, size: int, rank: int, member: Member, place: Callable[[int], None]) -> Group:
    """The group of those kernels of this process that `key` is the same of, which `member` becomes a rank of:
    a new one where that rank is taken.
    """
    with _joining:
        group = _gathering.get(key)
        if group is None or not group.is_missing(rank):
            group = _gathering[key] = Group(size, place)
        group.join(rank, member)
        return group


def _format_call(call: tuple[Any, ...]) -> str:
    name, *arguments = call
    return f"{name}({', '.join(map(str, arguments))})"
