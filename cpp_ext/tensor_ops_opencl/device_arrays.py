"""pyopencl arrays: computed on their own device and queue, never copied to the host, never waited for."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_ops_opencl.devices import form_of
from tensor_ops_opencl.engine import program
from tensor_ops_opencl.launches import Call, plan_of


def run(
    op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    """Enqueues an op, none of whose results is empty, on the first array's queue."""
    given = {name: array for name, array in arrays.items() if array is not None}
    first = next(iter(given.values()))
    queue = first.queue
    before = [event for array in (*given.values(), *results.values()) for event in array.events]
    built = program(first.context, queue.device, form_of(queue.device))
    shape = next(iter(results.values())).shape
    plan = plan_of(Call(op, arrays, parameters, shape, built.form, built.compute_units))
    places = {_place(array): _part(array) for array in (*given.values(), *results.values())}
    buffers = {name: places[_place(a)] or _copied(queue, a, before) for name, a in given.items()}
    buffers |= {name: places[_place(out)] or _buffer(first, out.nbytes) for name, out in results.items()}
    buffers |= {name: _buffer(first, size) for name, size in plan.scratch.items()}
    for launch in plan.launches:
        before = [built.launch(queue, launch, buffers, before)]
    for name, out in results.items():
        moved = places[_place(out)] is None
        out.add_event(_moved(queue, buffers[name], out, before) if moved else before[0])


def zeros(queue: Any, out: Any) -> None:
    """Enqueues that `out` be zeros."""
    import pyopencl as cl

    where = out.base_data, np.uint8(0), out.offset, out.nbytes
    out.add_event(cl.enqueue_fill_buffer(queue, *where, wait_for=list(out.events)))


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


def _moved(queue: Any, buffer: Any, out: Any, before: list) -> Any:
    import pyopencl as cl

    size, start = out.nbytes, out.offset
    return cl.enqueue_copy(
        queue, out.base_data, buffer, dst_offset=start, byte_count=size, wait_for=list(before)
    )


def _buffer(array: Any, size: int) -> Any:
    """Memory in an array's context. Not pooled: the queue may use it still when the next call comes."""
    import pyopencl as cl

    return cl.Buffer(array.context, cl.mem_flags.READ_WRITE, size)
