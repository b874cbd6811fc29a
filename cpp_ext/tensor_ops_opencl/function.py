"""The public function of an op: its declaration's parameters, its checks, and the way to the device."""

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensor_ops_opencl import device_arrays, host_arrays

_MISSING: Any = object()


def op_function(name: str) -> Callable:
    """`name(arrays..., parameters..., *, out=None)`, with defaults and documentation of the declaration.

    A real `def` made from text, as dataclasses make theirs: Python itself then binds the arguments, in a
    tenth of the time of inspect.Signature.bind.
    """
    from airllm.tensor_ops import OPS

    op = OPS[name]
    optional = {operand.name for operand in op.operands if operand.optional}
    required = op.arrays.keys() - optional
    text = "".join(
        f"{name}={'missing' if name in required else repr(parameter.default)}, "
        for name, parameter in op.signature.parameters.items()
        if name not in ("out", "backend")
    )
    given = f"({', '.join(op.arrays)},), ({''.join(f'{parameter}, ' for parameter in op.defaults)})"
    scope: dict[str, Any] = {"call": _call, "op": op, "missing": _MISSING}
    exec(f"def {name}({text}*, out=None): return call(op, {given}, out)", scope)
    made = scope[name]
    made.__doc__, made.__module__, made.__signature__ = (
        op.definition.__doc__,
        "tensor_ops_opencl",
        _signature(op),
    )
    return made


def _signature(op: Any) -> inspect.Signature:
    """What help() shows: the op's, without the choice of a backend."""
    parameters = [parameter for name, parameter in op.signature.parameters.items() if name != "backend"]
    return inspect.Signature(parameters)


def _call(op: Any, arrays: Sequence[Any], parameters: tuple, out: Any) -> Any:
    """Checks all arguments, then computes; an empty result needs no device."""
    given = {
        operand.name: a
        for operand, a in zip(op.operands, arrays, strict=True)
        if a is not None or not operand.optional
    }
    named = given | ({} if out is None else {"out": out})
    for name, array in named.items():
        if array is _MISSING:
            raise TypeError(f"{op.name}() missing required argument '{name}'")
    on_device = _on_device(op, named)
    shape = op.check(arrays, out)
    _check_leading_axes(op, arrays, shape)
    for name, array in named.items():
        _check_dense(op, name, array)
    checked = op.check_parameters(dict(zip(op.defaults, parameters, strict=True)))
    if on_device:
        _check_memory(op, dict(named))
    if out is None:
        out = _new(arrays[0], shape, on_device)
    _compute(op.name, given, checked, out, on_device)
    return out


def _compute(
    name: str, arrays: dict[str, Any], parameters: dict[str, Any], out: Any, on_device: bool
) -> None:
    """Nothing is launched for what is empty; a sum over nothing is zero."""
    if out.size == 0:
        return
    if any(array.size == 0 for array in arrays.values()):
        device_arrays.zeros(out.queue, out) if on_device else out.fill(0)
    elif on_device:
        device_arrays.run(name, arrays, parameters, {"out": out})
    else:
        host_arrays.run(name, arrays, parameters, {"out": out})


def _new(first: Any, shape: tuple[int, ...], on_device: bool) -> Any:
    """A result of the first array's kind and dtype."""
    if not on_device:
        return np.empty(shape, first.dtype)
    import pyopencl.array

    return pyopencl.array.Array(first.queue, shape, first.dtype, allocator=first.allocator)


def _on_device(op: Any, named: dict[str, Any]) -> bool:
    """Whether the arrays are pyopencl's; TypeError unless all are, or all are NumPy's."""
    from airllm.arrays import device_of

    module = sys.modules.get("pyopencl.array")
    ours = module.Array if module else ()
    first = next(iter(named.values()))
    on_device = isinstance(first, ours)
    expected = "pyopencl Array, as the first array is" if on_device else "NumPy array"
    for name, array in named.items():
        if isinstance(array, ours) if on_device else type(array) is np.ndarray:
            continue
        if not isinstance(array, ours) and (device := device_of(array)):
            raise TypeError(f"{op.name}: {name} has device {device}, expected host memory")
        raise TypeError(f"{op.name}: {name} has type {type(array).__name__}, expected a {expected}")
    return on_device


def _check_leading_axes(op: Any, arrays: Sequence[Any], shape: tuple[int, ...]) -> None:
    """Kernels do not broadcast; only an array without leading axes, after the first, is shared by all."""
    batch = shape[: len(shape) - sum(axis != "..." for axis in op.out)]
    for i, ((name, axes), array) in enumerate(zip(op.arrays.items(), arrays, strict=True)):
        if array is None:
            continue
        lead = tuple(array.shape[: len(array.shape) - sum(axis != "..." for axis in axes)])
        if lead != batch and (lead or i == 0):
            expected = f"({' '.join(axes)}) with ...={batch}"
            raise ValueError(f"{op.name}: {name} has shape {tuple(array.shape)}, expected {expected}")


def _check_dense(op: Any, name: str, array: Any) -> None:
    aligned = array.flags.aligned if isinstance(array, np.ndarray) else True
    if not array.flags.c_contiguous or not aligned:
        remedy = (
            f"pass numpy.ascontiguousarray({name})"
            if isinstance(array, np.ndarray)
            else f"pass {name}.copy()"
        )
        raise ValueError(
            f"{op.name}: {name} has strides {tuple(array.strides)}, "
            f"expected C-contiguous and aligned ({remedy})"
        )


def _check_memory(op: Any, named: dict[str, Any]) -> None:
    """Device arrays are buffers of one context; `out` may be an input itself, but no part of one."""
    import pyopencl as cl

    first_name, first = next(iter(named.items()))
    for name, array in named.items():
        if array.queue is None:
            raise TypeError(f"{op.name}: {name} has no queue, expected one (pass {name}.with_queue(queue))")
        if array.context != first.context:
            raise TypeError(f"{op.name}: {name} has another OpenCL context, expected that of {first_name}")
        if array.base_data is not None and not isinstance(array.base_data, cl.MemoryObjectHolder):
            raise TypeError(f"{op.name}: {name} has shared virtual memory, expected a buffer")
    if (out := named.pop("out", None)) is not None:
        for name, array in named.items():
            _check_apart(op, name, array, out)


def _check_apart(op: Any, name: str, array: Any, out: Any) -> None:
    in_place = op.arrays[name] == op.out
    if array.size == 0 or out.size == 0 or array.base_data.int_ptr != out.base_data.int_ptr:
        return
    same = in_place and array.offset == out.offset and array.shape == out.shape
    if not same and array.offset < out.offset + out.nbytes and out.offset < array.offset + array.nbytes:
        instead = f" or exactly {name}" if in_place else ""
        raise ValueError(f"{op.name}: out overlaps {name}, expected memory of its own{instead}")
