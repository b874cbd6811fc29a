"""Ops on NumPy arrays on an open device: without copies on CPU devices, else with pooled buffers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from airllm.backends.device.ops import memory_of
from airllm.backends.gpu.launches import Call, plan_of
from tensor_ops_opencl.devices import driver
from tensor_ops_opencl.engine import Engine


def run(
    opened: Engine,
    op: str,
    arrays: Mapping[str, Any],
    parameters: Mapping[str, Any],
    results: Mapping[str, np.ndarray],
) -> None:
    """Compute an op's non-empty results on an open device, and wait for them."""
    if not opened.shares_memory:
        arrays = {name: _compact(array) for name, array in arrays.items()}
    program, memory = opened.program, _Memory(opened)
    shape = next(iter(results.values())).shape
    plan = plan_of(Call(op, arrays, parameters, shape, program.form, program.compute_units))
    stored = {name: memory_of(array) for name, array in arrays.items() if array is not None}
    buffers = {name: memory.input_buffer(array) for name, array in stored.items() if array.size}
    buffers |= {name: memory.output_buffer(out) for name, out in results.items()}
    buffers |= {name: opened.pool.allocate(size) for name, size in plan.scratch.items()}
    for launch in plan.launches:
        program.launch(opened.queue, launch, buffers)
    for out in results.values():
        memory.bring_back(out)


class _Memory:
    """The buffers of one call's host arrays."""

    def __init__(self, opened: Engine):
        self.engine = opened
        self.buffers: list[tuple[np.ndarray, Any]] = []

    def input_buffer(self, array: np.ndarray) -> Any:
        """A buffer with an input's values."""
        if (buffer := self._own(array)) is None:
            import pyopencl as cl

            buffer = self.engine.pool.allocate(_span(array))
            cl.enqueue_copy(self.engine.queue, buffer, _bytes(array), is_blocking=False)
            driver.copied.add()
            driver.counters.add(uploaded=_span(array))
            self.buffers.append((array, buffer))
        return buffer

    def output_buffer(self, out: np.ndarray) -> Any:
        """A buffer for a result; it may be an input's buffer."""
        if (buffer := self._own(out)) is None:
            buffer = self.engine.pool.allocate(out.nbytes)
            self.buffers.append((out, buffer))
        return buffer

    def bring_back(self, out: np.ndarray) -> None:
        """Wait for the result and copy it to `out` if necessary."""
        import pyopencl as cl

        queue, buffer = self.engine.queue, self._existing_buffer(out)
        driver.counters.add(waits=1)
        map_buffer: Any = cl.enqueue_map_buffer  # its type annotation lacks most dtypes
        if buffer.flags & cl.mem_flags.USE_HOST_PTR:
            mapped, _ = map_buffer(queue, buffer, cl.map_flags.READ, 0, (out.nbytes,), np.uint8)
            mapped.base.release(queue)
        else:
            cl.enqueue_copy(queue, _bytes(out), buffer)
            driver.copied.add()
            driver.counters.add(downloaded=out.nbytes)

    def _own(self, array: np.ndarray) -> Any:
        """The buffer of exactly this memory, or a new one on this memory if the device shares it."""
        buffer = self._existing_buffer(array)
        if buffer is None and self.engine.shares_memory and not self._overlaps(array):
            import pyopencl as cl

            buffer = cl.Buffer(self.engine.context, cl.mem_flags.USE_HOST_PTR, hostbuf=_bytes(array))
            self.buffers.append((array, buffer))
        return buffer

    def _existing_buffer(self, array: np.ndarray) -> Any:
        place = array.ctypes.data, _span(array)
        return next((b for known, b in self.buffers if (known.ctypes.data, _span(known)) == place), None)

    def _overlaps(self, array: np.ndarray) -> bool:
        """Whether the array overlaps a buffer's memory: OpenCL leaves overlapping buffers undefined."""
        return any(np.may_share_memory(array, known) for known, _ in self.buffers)


def _span(array: np.ndarray) -> int:
    """Bytes from an array's first element to the end of its last, for non-negative strides."""
    steps = zip(array.shape, array.strides, strict=True)
    return sum((n - 1) * stride for n, stride in steps) + array.itemsize


def _compact(array: Any) -> Any:
    """The array, or a copy if that transfers fewer bytes."""
    sparse = isinstance(array, np.ndarray) and _span(array) > array.nbytes
    return np.ascontiguousarray(array) if sparse else array


def _bytes(array: np.ndarray) -> np.ndarray:
    """The memory that an array spans, as bytes: bfloat16 does not support the buffer protocol."""
    if not array.flags.c_contiguous:
        shape, strides = (_span(array) // array.itemsize,), (array.itemsize,)
        array = np.lib.stride_tricks.as_strided(array, shape, strides, writeable=False)
    return array.reshape(-1).view(np.uint8)
