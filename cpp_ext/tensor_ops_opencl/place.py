"""An open OpenCL device as the place of a model's arrays: see `airllm.backends.device.device_ops.Place`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from airllm.backends.device.faults import COMPILE, LOST, MEMORY
from airllm.backends.device.fused_ops import FusedOps
from airllm.backends.device.recording import Recorded
from airllm.backends.devices import host_memory
from airllm.backends.gpu.launches import Plan
from airllm.backends.gpu.planning import SharedKernels
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
        if not isinstance(error, cl.Error):
            return ""
        if error.code in _NO_MEMORY:
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
    """`airllm.backends.device.recording.Replay`: without command buffers, which drivers do not have, the host
    starts each launch, but plans none.
    """

    def __init__(self, opened: Engine, launches: Sequence[Recorded]):
        self._queue, self._launches, self._memory = opened.queue, [], []
        for each in launches:
            of, parts = each.launch, {name: _whole_part(*at[:2]) for name, at in each.memory.items()}
            kernel = opened.program.new_kernel(of.family, of.kernel)
            set_arguments(kernel, of.arguments, parts)
            self._launches.append((kernel, (of.groups * of.group,), (of.group,), each))
            self._memory.append(parts)

    def run(self, tokens: int) -> None:
        import pyopencl as cl

        for kernel, items, group, recorded in self._launches:
            if recorded.steps:
                for i, number in recorded.numbers(tokens).items():
                    kernel.set_arg(i, number)
            cl.enqueue_nd_range_kernel(self._queue, kernel, items, group)
        driver.launched.add()
        count = len(self._launches)
        driver.counters.add(launches=count, submits=count, replayed=count)


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
