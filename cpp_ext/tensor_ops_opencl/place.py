"""An open OpenCL device as the place of a model's arrays: see `airllm.backends.device.place.Place`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from airllm.backends.device.faults import COMPILE, LOST, MEMORY
from airllm.backends.device.fused_ops import FusedOps
from airllm.backends.device.recording import Recorded
from airllm.backends.devices import host_memory
from airllm.backends.gpu.launches import Plan
from airllm.backends.gpu.planning import SharedKernels
from tensor_ops_opencl.command_buffers import CommandBuffer, CommandBufferError, functions_of
from tensor_ops_opencl.devices import driver
from tensor_ops_opencl.engine import Engine, NotCompiled, engine, forget_engines, set_arguments
from tensor_ops_opencl.selection import choice

_LARGE = 1 << 22  # bytes: the pool rounds sizes up, and keeps what is freed
# CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES, CL_OUT_OF_HOST_MEMORY, CL_INVALID_BUFFER_SIZE
_NO_MEMORY = (-4, -5, -6, -61)


class OpenCLPlace(SharedKernels):
    """Memory of a pool, transfers and kernels on the queue of an open device."""

    counters = driver.counters
    writes_inputs = True

    def __init__(self, opened: Engine, label: str):
        self.engine, self.label = opened, label
        self.alignment = opened.program.device.mem_base_addr_align // 8
        self._program = opened.program
        self.form, self.units = opened.program.form, opened.program.compute_units
        self._uploads: list[Any] = []  # an upload reads its array until the queue has come that far
        self._transfers: Any = None  # a queue beside that of the launches

    def allocate(self, nbytes: int) -> Any:
        if nbytes < _LARGE:
            return self.engine.pool.allocate(nbytes)
        import pyopencl as cl

        return cl.Buffer(self.engine.context, cl.mem_flags.READ_WRITE, nbytes)

    def upload(self, buffer: Any, array: np.ndarray) -> None:
        import pyopencl as cl

        flat = array.reshape(-1).view(np.uint8)
        event = cl.enqueue_copy(self.engine.queue, buffer, flat, is_blocking=False)
        self._uploads.append((event, flat))
        driver.copied.add()
        self.counters.add(uploaded=flat.nbytes)

    def download(self, buffer: Any, offset: int, out: np.ndarray) -> None:
        import pyopencl as cl

        flat = out.reshape(-1).view(np.uint8)
        cl.enqueue_copy(self.engine.queue, flat, buffer, src_offset=offset)
        self._forget_uploads()
        driver.copied.add()
        self.counters.add(downloaded=flat.nbytes, waits=1)

    def _forget_uploads(self) -> None:
        """Forget the uploads that have ended: to forget another one would wait for it."""
        import pyopencl as cl

        ended = cl.command_execution_status.COMPLETE
        self._uploads = [each for each in self._uploads if each[0].command_execution_status > ended]

    # ---- uploads beside launches: `airllm.backends.device.staging.Bus` ----

    def mark(self) -> Any:
        import pyopencl as cl

        event = cl.enqueue_marker(self.engine.queue)
        self.engine.queue.flush()
        return event

    def begin_upload(self, buffer: Any, pieces: Sequence[np.ndarray], after: Any) -> Any:
        import pyopencl as cl

        if self._transfers is None:
            self._transfers = cl.CommandQueue(self.engine.context, self._program.device)
        event, at = None, 0
        for piece in pieces:
            where: Any = {"dst_offset": at, "is_blocking": False, "wait_for": [after] if after else None}
            event = cl.enqueue_copy(self._transfers, buffer, piece, **where)
            self._uploads.append((event, piece))
            at += piece.nbytes
        self._transfers.flush()
        driver.copied.add()
        self.counters.add(uploaded=at)
        return event

    def finish_upload(self, upload: Any) -> None:
        import pyopencl as cl

        cl.enqueue_barrier(self.engine.queue, wait_for=[upload])

    def wait_upload(self, upload: Any) -> None:
        upload.wait()

    def pinned(self, nbytes: int) -> np.ndarray | None:
        if self.engine.shares_memory:
            return None
        import pyopencl as cl

        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        buffer = cl.Buffer(self.engine.context, flags, nbytes)
        map_buffer: Any = cl.enqueue_map_buffer  # its type annotation lacks most dtypes
        array, _ = map_buffer(self.engine.queue, buffer, cl.map_flags.WRITE, 0, (nbytes,), np.uint8)
        return array

    # ---- memory and faults ----

    def free_memory(self) -> int | None:
        """Free bytes: of the host, if the device is one with it; else all but what our arrays take."""
        device = self._program.device
        if device.host_unified_memory:
            free = host_memory()[1]
            return None if free is None else min(free, device.global_mem_size)
        return device.global_mem_size - self.counters.read().resident

    def fault(self, error: Exception) -> str:
        """The kind of fault that an error of the driver is; "" for other errors."""
        import pyopencl as cl

        if isinstance(error, NotCompiled):
            return COMPILE
        if not isinstance(error, cl.Error | CommandBufferError):
            return ""
        if isinstance(error, cl.Error) and error.code in _NO_MEMORY:
            return MEMORY
        forget_engines()
        return LOST

    def run(self, plan: Plan, memory: Mapping[str, tuple[Any, int, int]]) -> None:
        parts = {name: _part(*place) for name, place in memory.items()}
        for launch in plan.launches:
            self._program.launch(self.engine.queue, launch, parts)

    def record(self, launches: Sequence[Recorded]) -> Replay:
        """The launches, each with a kernel object that keeps its arguments."""
        return Replay(self.engine, launches)


class Replay:
    """`airllm.backends.device.recording.Replay`. Launches whose numbers do not grow are command buffers where
    the driver has them; the host starts the others one by one, but plans none.
    """

    def __init__(self, opened: Engine, launches: Sequence[Recorded]):
        self._queue, self._count = opened.queue, len(launches)
        self._memory: list[Any] = []
        ready = [self._ready(opened, each) for each in launches]
        calls = functions_of(opened.program.device)
        self._starts: list[Callable[[int], None]] = []
        for fixed, group in itertools.groupby(ready, lambda each: not each.recorded.steps):
            some = list(group)
            self._starts += self._together(some, calls) if fixed else list(map(self._start, some))

    def _ready(self, opened: Engine, recorded: Recorded) -> _Ready:
        of = recorded.launch
        parts = {name: _whole_part(*at[:2]) for name, at in recorded.memory.items()}
        kernel = opened.program.new_kernel(of.family, of.kernel)
        set_arguments(kernel, of.arguments, parts)
        self._memory.append(parts)
        return _Ready(kernel, of.groups * of.group, of.group, recorded)

    def _together(self, launches: list[_Ready], calls: Any) -> Sequence[Callable[[int], None]]:
        """What starts launches with the arguments that they have. Of a driver that does not take a buffer of
        them, which the extension allows, each is started.
        """
        if calls and len(launches) > 1:
            with suppress(CommandBufferError):
                buffer = CommandBuffer(calls, self._queue, [each[:3] for each in launches])
                return [lambda tokens: buffer.enqueue()]
        return list(map(self._start, launches))

    def _start(self, launch: _Ready) -> Callable[[int], None]:
        """What starts a launch with the numbers of so many tokens later."""
        import pyopencl as cl

        kernel, (items, group), recorded = launch.kernel, ((launch.items,), (launch.group,)), launch.recorded

        def start(tokens: int) -> None:
            for i, number in recorded.numbers(tokens).items():
                kernel.set_arg(i, number)
            cl.enqueue_nd_range_kernel(self._queue, kernel, items, group)

        return start

    def run(self, tokens: int) -> None:
        for start in self._starts:
            start(tokens)
        driver.launched.add()
        driver.counters.add(launches=self._count, submits=len(self._starts), replayed=self._count)


class _Ready(NamedTuple):
    """A kernel with its arguments, its grid, and how its numbers grow."""

    kernel: Any
    items: int
    group: int
    recorded: Recorded


def _whole_part(buffer: Any, offset: int) -> Any:
    """A buffer from the offset on."""
    return _part(buffer, offset, buffer.size - offset)


def _part(buffer: Any, offset: int, nbytes: int) -> Any:
    """A buffer that begins at the offset."""
    if offset == 0:
        return buffer
    import pyopencl as cl

    whole: Any = cl.Buffer.from_int_ptr(buffer.int_ptr)
    return whole.get_sub_region(offset, nbytes)


def device_ops() -> FusedOps:
    """The ops on arrays that stay on the device in use."""
    device = choice.in_use()
    return FusedOps("opencl", OpenCLPlace(engine(device), device.label))
