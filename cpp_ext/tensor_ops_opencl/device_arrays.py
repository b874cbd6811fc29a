"""pyopencl arrays: computed on their own device and queue, never copied to the host, never waited for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensor_ops_opencl.devices import form_of
from tensor_ops_opencl.engine import program
from tensor_ops_opencl.launches import launch_of


def run(op: str, arrays: Sequence[Any], numbers: tuple, out: Any, shape: tuple[int, ...]) -> Any:
    """Enqueues an op on the first array's queue and returns `out`, or a new array on that queue."""
    import pyopencl as cl
    import pyopencl.array

    first, queue = arrays[0], arrays[0].queue
    if out is None:
        out = pyopencl.array.Array(queue, shape, first.dtype, allocator=first.allocator)
    if out.size == 0:
        return out
    before = [event for array in (*arrays, out) for event in array.events]
    if any(array.size == 0 for array in arrays):
        zero = np.uint8(0)
        out.add_event(
            cl.enqueue_fill_buffer(queue, out.base_data, zero, out.offset, out.nbytes, wait_for=before)
        )
        return out

    built = program(first.context, queue.device, form_of(queue.device))
    launch = launch_of(op, arrays, numbers, shape, built.form, built.compute_units)
    places = {_place(array): _part(array) for array in (*arrays, out)}
    inputs = [places[_place(array)] or _copied(queue, array, before) for array in arrays]
    result = places[_place(out)] or _buffer(first, out.nbytes)
    scratch = [_buffer(first, launch.scratch_bytes)] if launch.scratch_bytes else []
    done = built.launch(queue, launch, [*inputs, result, *scratch], before)
    if places[_place(out)] is None:
        done = cl.enqueue_copy(
            queue, out.base_data, result, dst_offset=out.offset, byte_count=out.nbytes, wait_for=[done]
        )
    out.add_event(done)
    return out


def _place(array: Any) -> tuple[int, int]:
    return array.base_data.int_ptr, array.offset


def _part(array: Any) -> Any:
    """The buffer that begins where the array does; None where the device cannot make one begin there."""
    if array.offset == 0:
        return array.base_data
    if array.offset % (array.queue.device.mem_base_addr_align // 8):
        return None
    return array.base_data.get_sub_region(array.offset, array.nbytes)


def _copied(queue: Any, array: Any, before: list) -> Any:
    """A copy on the device that begins at its buffer's start."""
    import pyopencl as cl

    copy = _buffer(array, array.nbytes)
    size, start = array.nbytes, array.offset
    before.append(
        cl.enqueue_copy(
            queue, copy, array.base_data, src_offset=start, byte_count=size, wait_for=list(before)
        )
    )
    return copy


def _buffer(array: Any, size: int) -> Any:
    """Memory in an array's context. Not pooled: the queue may use it still when the next call comes."""
    import pyopencl as cl

    return cl.Buffer(array.context, cl.mem_flags.READ_WRITE, size)
