"""The launches of calls that are no ops: copies and sums of arrays with any strides."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from airllm.backends.device.launch_plan import TYPES
from airllm.backends.device.strides import shared_axes
from airllm.backends.gpu.launches import Launch, Plan
from airllm.formats import FORMATS

_MOST_GROUPS = 2**16


def assign(arrays: Mapping[str, Any], out: Any, grid: tuple[int, int]) -> Plan:
    """out = x; `grid` is the most groups, and the items of a group."""
    x = arrays["x"]
    sizes, (of_x, of_out) = shared_axes(_shape(out), [_at_least_1d(x), _at_least_1d(out)])
    types = (np.uint32(TYPES[x.dtype.name]), np.uint32(TYPES[out.dtype.name]))
    rows, dim = _rows(out)
    starts = (_start(x), _start(out), of_x[-1], of_out[-1], *sizes, *of_x[:-1], *of_out[:-1])
    arguments = ("x", "out", *_numbers(rows, dim), *types, *_numbers(*starts))
    return _plan("assign", arguments, rows, grid)


def assign_q8_0(arrays: Mapping[str, Any], out: Any, grid: tuple[int, int]) -> Plan:
    """The rows of x, floats, as rows of blocks."""
    x = arrays["x"]
    sizes, (of_x, of_out) = shared_axes(_shape(out), [_at_least_1d(x), out])
    rows, row_bytes = _rows(out)
    starts = (_start(x), _start(out), of_x[-1], *sizes, *of_x[:-1], *of_out[:-1])
    counts = _numbers(rows, row_bytes // FORMATS["q8_0"].bytes)
    arguments = ("x", "out", *counts, np.uint32(TYPES[x.dtype.name]), *_numbers(*starts))
    return _plan("assign_q8_0", arguments, rows, grid)


def combine(
    arrays: Mapping[str, Any], out: Any, parameters: Mapping[str, Any], grid: tuple[int, int]
) -> Plan:
    """out = x op y, or x op value."""
    x, y = arrays["x"], arrays["y"]
    given = [_at_least_1d(x), None if y is None else _at_least_1d(y)]
    sizes, (of_x, of_y) = shared_axes(_shape(out), given)
    rows, dim = _rows(out)
    operation = np.uint32(parameters["op"]), np.float32(parameters["value"])
    starts = (_start(x), _start(y), _start(out), of_x[-1], of_y[-1], *sizes, *of_x[:-1], *of_y[:-1])
    memory = ("x", "y" if y is not None else None, "out")
    return _plan("combine", (*memory, *_numbers(rows, dim), *operation, *_numbers(*starts)), rows, grid)


def rope_append(
    arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, int], grid: tuple[int, int]
) -> Plan:
    """A token's heads, normalized and rotated; keys and values go to a layer of a cache: see
    `airllm.backends.device.heads`.
    """
    names = ("cos", "sin", "q_norm", "k_norm", "v_norm")
    memory = ("x", *(name if name in arrays else None for name in names), "q", "cache")
    sizes = ("heads", "kv_heads", "q_first", "q_step", "k_first", "v_first", "dim", "r")
    flags = numbers["interleaved"], numbers["late"], TYPES[outs["cache"].dtype.name]
    places = ("k_from", "v_from", "head_step", "q_span", "k_span")
    arguments = (
        *memory,
        *_numbers(*(numbers[name] for name in sizes)),
        *map(np.uint32, flags),
        *_numbers(*(numbers[name] for name in places)),
        np.float32(numbers["eps"]),
        np.float32(numbers["factor"]),
    )
    return _plan("rope_append", arguments, numbers["heads"] + 2 * numbers["kv_heads"], grid)


def residual_norms(
    arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], grid: tuple[int, int]
) -> Plan:
    """The sums and norms between two halves of a layer: see `airllm.backends.device.residual`."""
    rows, dim = arrays["x"].shape
    names = ("x", "x_norm", "y", "y_norm", "post", "residual", "scale", "norms")
    memory = (*(name if name in arrays else None for name in names), "total", "normed")
    floats = np.float32(numbers["eps"]), np.float32(numbers["factor"])
    flags = np.uint32(numbers["centered"]), np.uint32(numbers["biased"])
    arguments = (*memory, *_numbers(rows, dim, numbers["count"]), *floats, *flags)
    return _plan("residual_norms", arguments, rows, grid)


def _plan(kernel: str, arguments: tuple, rows: int, grid: tuple[int, int]) -> Plan:
    most, group = grid
    return Plan((Launch("elements", kernel, arguments, min(rows, most), group),))


def _rows(array: Any) -> tuple[int, int]:
    *lead, dim = _shape(array)
    return prod(lead), dim


def _shape(array: Any) -> tuple[int, ...]:
    return array.shape or (1,)


def _at_least_1d(array: Any) -> Any:
    return array if array.shape else array.reshape(1)


def _start(array: Any) -> int:
    return 0 if array is None else array.offset // array.itemsize


def _numbers(*counts: int) -> tuple:
    return tuple(np.uint64(count) for count in counts)
