"""A GPU behind the compiled module of a backend as the place of a model's arrays: see
`airllm.backends.device.place.Place`.

The module has `Queue`, `Launch` and `compile` (`cpp_ext/cuda/ops/queue.h`). Kernels are compiled at their
first use, a family at a time, by the compiler that the vendor has for that.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airllm.backends.device.counters import Counters
from airllm.backends.device.faults import COMPILE, LOST
from airllm.backends.device.fused_ops import FusedOps
from airllm.backends.device.recording import Recorded
from airllm.backends.gpu.launches import Launch, Plan
from airllm.backends.gpu.machine_code import machine_code
from airllm.backends.gpu.planning import SharedKernels


@dataclass(frozen=True)
class ReadyPlan(Plan):
    """A plan, and its launches as the module's: with their kernels, and the bytes of their numbers."""

    ready: tuple[Any, ...] = ()


class QueuePlace(SharedKernels):
    """Memory, transfers and kernels on a queue of the device that the module has in use."""

    form = "gpu"
    alignment = 16  # bytes that a kernel reads at once
    writes_inputs = True

    def __init__(self, module: Any):
        self._module, self.label = module, module.device()
        self.counters = counters_of(module)
        self._queue = module.Queue()
        self.units = self._queue.units
        self._programs: dict[str, Any] = {}

    def allocate(self, nbytes: int) -> Any:
        return self._queue.allocate(nbytes)

    def upload(self, buffer: Any, array: np.ndarray) -> None:
        flat = array.reshape(-1).view(np.uint8)
        self._queue.upload(buffer, flat)
        self.counters.add(uploaded=flat.nbytes)

    def download(self, buffer: Any, offset: int, out: np.ndarray) -> None:
        flat = out.reshape(-1).view(np.uint8)
        self._queue.download(buffer, offset, flat)
        self.counters.add(downloaded=flat.nbytes, waits=1)

    # ---- uploads beside launches: `airllm.backends.device.staging.Bus` ----

    def mark(self) -> Any:
        return self._queue.mark()

    def begin_upload(self, buffer: Any, pieces: Sequence[np.ndarray], after: Any) -> Any:
        self.counters.add(uploaded=sum(piece.nbytes for piece in pieces))
        return self._queue.begin_upload(buffer, list(pieces), after)

    def finish_upload(self, upload: Any) -> None:
        self._queue.finish_upload(upload)

    def wait_upload(self, upload: Any) -> None:
        self._queue.wait_upload(upload)

    def pinned(self, nbytes: int) -> np.ndarray | None:
        return self._queue.pinned(nbytes)

    # ---- memory and faults ----

    def free_memory(self) -> int:
        """Free bytes of the device."""
        return self._queue.free_memory()

    def fault(self, error: Exception) -> str:
        """The kind of fault that an error of the driver is; "" for other errors."""
        if isinstance(error, self._module.CompileError):
            return COMPILE
        return LOST if isinstance(error, self._module.DriverError) else ""

    # ---- kernels ----

    def plan(self, op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], outs: Any) -> ReadyPlan:
        """The launches of a call, ready to run."""
        planned = super().plan(op, arrays, parameters, outs)
        return ReadyPlan(planned.launches, planned.scratch, tuple(map(self._ready, planned.launches)))

    def _ready(self, launch: Launch) -> Any:
        program = self._program(launch.family)
        arguments = [
            each if each is None or isinstance(each, str) else each.tobytes() for each in launch.arguments
        ]
        return self._module.Launch(program, launch.kernel, launch.groups, launch.group, arguments)

    def _program(self, family: str) -> Any:
        if family not in self._programs:
            code = machine_code(self._module.compile, family, self._queue.arch)
            self._programs[family] = self._queue.load(code)
        return self._programs[family]

    def run(self, plan: Plan, memory: Mapping[str, tuple[Any, int, int]]) -> None:
        assert isinstance(plan, ReadyPlan)
        self._queue.run(plan.ready, memory)
        self.counters.add(launches=len(plan.ready), submits=len(plan.ready))

    def record(self, launches: Sequence[Recorded]) -> Replay:
        """The launches as a graph, where the vendor has graphs of such kernels."""
        ready = [(self._ready(each.launch), each.memory) for each in launches]
        numbers = [
            (n, i, int(each.launch.arguments[i]), step)
            for n, each in enumerate(launches)
            for i, step in each.steps.items()
        ]
        return Replay(self._queue.record(ready, numbers), ready, self.counters)


class Replay:
    """`airllm.backends.device.recording.Replay`."""

    def __init__(self, recording: Any, launches: Sequence[Any], counters: Counters):
        self._recording, self._launches, self._counters = recording, launches, counters

    def run(self, tokens: int) -> None:
        self._recording.run(tokens)
        count = len(self._launches)
        self._counters.add(launches=count, submits=1, replayed=count)


@functools.cache
def counters_of(module: Any) -> Counters:
    """What the module's queues have done in this process."""
    return Counters()


def attribute_of(module: Any, name: str) -> Any:
    """An attribute of a compiled module that is made here: `device_ops()` or `counters`."""
    if name == "counters":
        return counters_of(module)
    return lambda: FusedOps(module.__name__.rpartition("_")[2], QueuePlace(module))
