"""Ops on pyopencl arrays: on their own device and queue, without copies to the host and without waiting."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm.backends.device.ops import memory_of
from airllm.backends.gpu.launches import Call, Plan, dense_plan, plan_of
from tensor_ops_opencl.devices import form_of
from tensor_ops_opencl.engine import Program, program


def run(
    op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    """Enqueue an op with non-empty results on the first array's queue."""
    shape = next(iter(results.values())).shape
    _enqueue(lambda b: plan_of(Call(op, arrays, parameters, shape, b.form, b.compute_units)), arrays, results)


def dense(array: Any) -> Any:
    """The array, or a copy on the device if it is not C-contiguous."""
    if array.flags.c_contiguous or 0 in array.shape:
        return array
    import pyopencl.array

    out = pyopencl.array.Array(array.queue, array.shape, array.dtype, allocator=array.allocator)
    _enqueue(lambda b: dense_plan(array, b.form, b.compute_units), {"x": array}, {"out": out})
    return out


def _enqueue(
    plan_for: Callable[[Program], Plan], arrays: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    given = {name: memory_of(a) for name, a in arrays.items() if a is not None and 0 not in a.shape}
    first = next(iter(given.values()))
    queue = first.queue
    before = [event for array in (*given.values(), *results.values()) for event in array.events]
    built = program(first.context, queue.device, form_of(queue.device))
    plan = plan_for(built)
    places = {_place(array): _part(array) for array in (*given.values(), *results.values())}
    buffers = {name: places[_place(a)] or _copy(queue, a, before) for name, a in given.items()}
    buffers |= {name: places[_place(out)] or _buffer(first, out.nbytes) for name, out in results.items()}
    buffers |= {name: _buffer(first, size) for name, size in plan.scratch.items()}
    for launch in plan.launches:
        before = [built.launch(queue, launch, buffers, before)]
    for name, out in results.items():
        moved = places[_place(out)] is None
        out.add_event(_copy_back(queue, buffers[name], out, before) if moved else before[0])


def zeros(out: Any) -> None:
    """Enqueue filling `out` with zeros."""
    import pyopencl as cl

    where = out.base_data, np.uint8(0), out.offset, out.nbytes
    out.add_event(cl.enqueue_fill_buffer(out.queue, *where, wait_for=list(out.events)))


def _place(array: Any) -> tuple[int, int, int]:
    return array.base_data.int_ptr, array.offset, _span(array)


def _part(array: Any) -> Any:
    """A buffer that begins at the array's start; None if the device cannot make one there."""
    if array.offset == 0:
        return array.base_data
    if array.offset % (array.queue.device.mem_base_addr_align // 8):
        return None
    return array.base_data.get_sub_region(array.offset, _span(array))


def _copy(queue: Any, array: Any, before: list) -> Any:
    """A copy on the device, at the start of its buffer."""
    import pyopencl as cl

    copy = _buffer(array, _span(array))
    where = {"src_offset": array.offset, "byte_count": _span(array)}
    before.append(cl.enqueue_copy(queue, copy, array.base_data, **where, wait_for=list(before)))
    return copy


def _copy_back(queue: Any, buffer: Any, out: Any, before: list) -> Any:
    import pyopencl as cl

    where = {"dst_offset": out.offset, "byte_count": out.nbytes}
    return cl.enqueue_copy(queue, out.base_data, buffer, **where, wait_for=list(before))


def _span(array: Any) -> int:
    """Bytes from an array's first element to the end of its last, for non-negative strides."""
    steps = zip(array.shape, array.strides, strict=True)
    return sum((n - 1) * stride for n, stride in steps) + array.dtype.itemsize


def _buffer(array: Any, size: int) -> Any:
    """Allocate memory in an array's context, not from a pool: the queue may still use it at the next call."""
    import pyopencl as cl

    return cl.Buffer(array.context, cl.mem_flags.READ_WRITE, size)


def check_memory(op: Any, given: Mapping[str, Any], outs: Sequence[Any]) -> None:
    """Require buffers of one context. A result may be an input, but not a part of one."""
    arrays = {name: memory_of(array) for name, array in given.items()}
    results = {o.name: out for o, out in zip(op.outs, outs, strict=False)}
    first_name, first = next(iter(arrays.items()))
    for name, array in (arrays | results).items():
        _check_buffer(f"{op.name}: {name}", array, first_name, first)
    for operand in op.outs[: len(outs)]:
        for other in (*op.operands, *op.outs):
            apart = arrays.get(other.name, results.get(other.name))
            if apart is not None and other is not operand:
                in_place = other in op.operands and other.kind == "own" and other.axes == operand.axes
                _check_apart(op.name, operand.name, results[operand.name], other.name, apart, in_place)


def _check_buffer(what: str, array: Any, first_name: str, first: Any) -> None:
    import pyopencl as cl

    if array.queue is None:
        name = what.split()[-1]
        raise TypeError(f"{what} has no queue, expected one (pass {name}.with_queue(queue))")
    if array.context != first.context:
        raise TypeError(f"{what} has another OpenCL context, expected that of {first_name}")
    if array.base_data is not None and not isinstance(array.base_data, cl.MemoryObjectHolder):
        raise TypeError(f"{what} has shared virtual memory, expected a buffer")


def _check_apart(op: str, out_name: str, out: Any, name: str, array: Any, in_place: bool) -> None:
    if array.size == 0 or out.size == 0 or array.base_data.int_ptr != out.base_data.int_ptr:
        return
    same = in_place and array.offset == out.offset and array.shape == out.shape
    if not same and array.offset < out.offset + out.nbytes and out.offset < array.offset + _span(array):
        instead = f" or exactly {name}" if in_place else ""
        raise ValueError(f"{op}: {out_name} overlaps {name}, expected memory of its own{instead}")
