"""Several kernels of one process share a model, each on its own device. The counterpart of `mpi.py`.

Each kernel has a thread that computes its part of every step. The threads meet at each all-reduce.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

_KEPT = 64 << 20  # bytes of results kept for kernels that are behind
_WANTED = (
    "world_size has value {size} and this process has no kernel of mpi_rank {missing}, expected one of each: "
    "create them all before the first compile() or step(), or run `mpiexec -n {size} python -m mpi4py "
    'program.py`, which starts {size} of it (it needs "airllm-tensor-ops[mpi]")'
)
_gathering: weakref.WeakValueDictionary[Hashable, Group] = weakref.WeakValueDictionary()
_joining = threading.Lock()


class Meeting:
    """A barrier at which the threads of `size` ranks exchange arrays."""

    def __init__(self, size: int):
        self._barrier = threading.Barrier(size)
        self._parts: list[np.ndarray] = [np.empty(0, np.float32)] * size

    def exchange(
        self, rank: int, part: np.ndarray, use: Callable[[list[np.ndarray]], np.ndarray]
    ) -> np.ndarray:
        """`use` of the parts of all ranks. Parts must not change until every rank has returned from it."""
        self._parts[rank] = part
        self._barrier.wait()
        result = use(self._parts)
        self._barrier.wait()
        return result

    def break_off(self) -> None:
        """Raise BrokenBarrierError in all threads that wait, or will."""
        self._barrier.abort()

    def begin_again(self) -> None:
        """Repair the barrier. No thread may be waiting."""
        self._barrier.reset()


@dataclass
class Rank:
    """One kernel of a group: `airllm.engine.parallel.tensor_parallel.Processes` within one process."""

    rank: int
    size: int
    meeting: Meeting

    def all_reduce(self, array: np.ndarray) -> None:
        """Replace a float32 array, in place, by its sum over all ranks. All sum in the same order and get the
        same bits.
        """
        array[...] = self.meeting.exchange(self.rank, array, lambda parts: np.sum(parts, axis=0))

    def gather(self, part: np.ndarray, counts: list[int]) -> np.ndarray:
        """The concatenated float32 parts of all ranks, of `counts` values each."""
        return self.meeting.exchange(self.rank, part, np.concatenate)

    def on_this_machine(self) -> int:
        """How many ranks run on this machine."""
        return self.size


class Member(Protocol):
    """A kernel of a group."""

    def carry_out(self, name: str, *arguments: Any) -> Any:
        """Compute this kernel's part of a step."""


@dataclass
class _Step:
    """A computed step of all ranks, with the results for those in `waiting`, which have not taken it yet."""

    call: tuple[Any, ...]
    results: list[Any]
    error: BaseException | None
    waiting: set[int]

    @property
    def nbytes(self) -> int:
        return sum(getattr(result, "nbytes", 0) for result in self.results)


class Group:
    """The kernels of one process that share a model. All take the same steps.

    The first call of a step computes it for all ranks; the other calls return its results. So kernels may be
    called in turn, or by threads.

    `place(rank)` runs first in the rank's thread and selects its device.
    """

    def __init__(self, size: int, place: Callable[[int], None]):
        self.size, self.meeting = size, Meeting(size)
        self._members: dict[int, weakref.ref[Any]] = {}
        self._place = place
        self._threads: list[ThreadPoolExecutor] = []  # empty until all are prepared
        self._lock = threading.Lock()
        self._steps: list[_Step] = []
        self._first = 0  # number of the oldest of `_steps`
        self._at = [0] * size  # number of each rank's next step
        self._prepared = False
        self._broken = ""

    def join(self, rank: int, member: Member) -> None:
        """Add a kernel as this rank."""
        self._members[rank] = weakref.ref(member)

    def is_missing(self, rank: int) -> bool:
        """Whether a kernel can still join as this rank."""
        return not (self._threads or self._broken or self._member(rank))

    def prepare(self) -> None:
        """Open all kernels, once, before the first step. ValueError if some are missing."""
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
        """This rank's result of the step. ValueError if the other ranks took another step."""
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
        """The rank's next step if others have taken it, else None; ValueError if it is no longer kept."""
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
        """The results of all ranks, or the error."""
        if self._broken:
            raise RuntimeError(f"the kernels that share this model stopped ({self._broken}): create new ones")
        started = [self._thread(rank).submit(self._part, rank, call) for rank in range(self.size)]
        try:
            wait(started)
        finally:  # so that Ctrl-C leaves all ranks at the same step
            wait(started)
        errors = [error for future in started if (error := future.exception())]
        if not errors:
            return [future.result() for future in started], None
        first = next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
        if len(errors) == self.size and all(type(error) is type(first) for error in errors):
            self.meeting.begin_again()  # all ranks refused the step: nothing has changed
        else:
            self._broken = f"{type(first).__name__}: {first}"
        return [None] * self.size, first

    def _part(self, rank: int, call: tuple[Any, ...]) -> Any:
        try:
            member = self._member(rank)
            if member is None:
                raise RuntimeError(f"the kernel of mpi_rank={rank} was released, expected all to be kept")
            return member.carry_out(*call)
        except BaseException:
            self.meeting.break_off()
            raise

    def _member(self, rank: int) -> Any:
        """The kernel of a rank; None if there is none any more."""
        found = self._members.get(rank)
        return found and found()

    def _thread(self, rank: int) -> ThreadPoolExecutor:
        if not self._threads:
            self._threads = [
                ThreadPoolExecutor(1, f"airllm rank {r}", self._place, (r,)) for r in range(self.size)
            ]
        return self._threads[rank]

    def _forget(self) -> None:
        """Drop steps that all ranks have taken, and the oldest ones if they take more than _KEPT bytes."""
        kept = sum(step.nbytes for step in self._steps)
        while self._steps and (not self._steps[0].waiting or kept > _KEPT):
            kept -= self._steps.pop(0).nbytes
            self._first += 1

    def leave(self, rank: int) -> None:
        """Called when a kernel is closed: the others cannot continue."""
        with self._lock:
            self._broken = self._broken or f"that of mpi_rank={rank} is closed"
            for thread in self._threads:
                thread.shutdown(wait=False)


def join_group(key: Hashable, size: int, rank: int, member: Member, place: Callable[[int], None]) -> Group:
    """Join the kernels of this process that have the same `key`, as `rank`. If that rank is taken, a new
    group begins.
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
