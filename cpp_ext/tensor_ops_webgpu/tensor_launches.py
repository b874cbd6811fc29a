"""The launches of calls that are no ops: copies and sums of arrays with any strides."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from airllm.backends.device.strides import shared_axes
from airllm.formats import FORMATS
from tensor_ops_webgpu.launches import Call, Plan, number, of_blocks

_GROUP = 64
_REDUCTION = 7  # steps of a work-group's reduction
RESIDUAL_INPUTS = ("x", "x_norm", "y", "y_norm", "post", "residual", "scale", "norms")
_HALVES = ("float16", "bfloat16")


def assign(arrays: Mapping[str, Any], out: Any) -> Plan:
    """out = x. NotImplementedError if out has rows of an odd number of halves, which share words, or rows
    that are not contiguous.
    """
    if out.dtype == np.uint8:
        return assign_q8_0(arrays, out)
    starts = _starts(out, {"x": arrays["x"], "out": out})
    if starts.pop("out_step") != 1 and out.shape[-1:] > (1,):
        raise NotImplementedError(f"webgpu: out has strides {out.strides}, expected contiguous rows")
    steps = (starts[f"out_{name}"] for name in ("s0", "s1", "s2", "s3", "from"))
    if out.dtype.name in _HALVES and any(each % 2 for each in (*steps, *out.shape[-1:])):
        found = f"an array of {out.dtype} has rows of {out.shape[-1]}"
        raise NotImplementedError(f"webgpu: {found}, expected an even number")
    call = Call("assign", {"x": arrays["x"]}, {}, {"out": out})
    return _plan(call, {"x": "x"}, out, starts)


def assign_q8_0(arrays: Mapping[str, Any], out: Any) -> Plan:
    """The rows of x, floats or blocks, as rows of blocks. NotImplementedError if out has none, or an address
    that is odd.
    """
    *lead, row_bytes = out.shape
    starts = _starts(out, {"x": arrays["x"], "out": out})
    places = (starts[f"out_{name}"] for name in ("s0", "s1", "s2", "s3", "from"))
    if row_bytes % FORMATS["q8_0"].bytes or any(each % 2 for each in places):
        raise NotImplementedError(f"webgpu: rows have {row_bytes} bytes, expected blocks of q8_0")
    blocks = row_bytes // FORMATS["q8_0"].bytes
    call = Call("assign_q8_0", {"x": arrays["x"]}, {}, {"out": out})
    given = {"rows": prod(lead), "d": blocks} | starts
    launch = call.launch(call.op, {"x": "x"}, prod(lead), 50 * -(-blocks // _GROUP), _GROUP, **given)
    return Plan((launch,))


def combine(arrays: Mapping[str, Any], out: Any, parameters: Mapping[str, Any]) -> Plan:
    """out = x op y, or x op value."""
    starts = _starts(out, {"x": arrays["x"], "y": arrays["y"]})
    call = Call("combine", arrays, {}, {"out": out})
    numbers = {"op": parameters["op"], "value": number(parameters["value"])}
    return _plan(call, {"x": "x", "y": "y"}, out, starts | numbers | {"out_from": _first(out)})


def rope_append(arrays: Mapping[str, Any], outs: Mapping[str, Any], numbers: Mapping[str, int]) -> Plan:
    """A token's heads, normalized and rotated; keys and values go to a layer of a cache: see
    `airllm.backends.device.heads`.
    """
    call = Call("rope_append", arrays, {}, outs)
    given: dict[str, Any] = {"d" if name == "dim" else name: value for name, value in numbers.items()}
    given |= {name: number(numbers[name]) for name in ("eps", "factor")}
    longest = max(numbers["q_span"], numbers["k_span"], numbers["dim"])
    steps = 2 * -(-longest // _GROUP) + -(-numbers["dim"] // (2 * _GROUP)) + 2 * _REDUCTION
    inputs = {name: name for name in ("x", "cos", "sin", "q_norm", "k_norm", "v_norm")}
    rows = numbers["heads"] + 2 * numbers["kv_heads"]
    return Plan((call.launch(call.op, inputs, rows, steps, _GROUP, **given),))


def residual_norms(arrays: Mapping[str, Any], outs: Mapping[str, Any], numbers: Mapping[str, Any]) -> Plan:
    """The sums and norms between two halves of a layer: see `airllm.backends.device.residual`."""
    call = Call("residual_norms", arrays, {}, outs)
    rows, d = arrays["x"].shape
    given: dict[str, Any] = dict(numbers) | {name: number(numbers[name]) for name in ("eps", "factor")}
    steps = (7 + numbers["count"]) * -(-d // _GROUP) + 5 * _REDUCTION
    inputs = {name: name for name in RESIDUAL_INPUTS}
    launch = call.launch(call.op, inputs, rows, steps, _GROUP, rows=rows, d=d, **given)
    return Plan((launch.without_missing(),))


def gated_linear(arrays: Mapping[str, Any], out: Any, activation: int, lanes: int) -> Plan:
    """out = activation(x @ first^T) * (x @ second^T), for one row of x."""
    call = Call("linear", arrays, {}, {"out": out}, lanes)
    inputs, sizes = {"a": "x", "b": "weight", "bias": ""}, (1, out.shape[-1], arrays["weight"].shape[-1])
    return Plan((of_blocks(call, inputs, *sizes, number(1), activation),))


def _plan(call: Call, inputs: dict[str, str], out: Any, numbers: dict[str, Any]) -> Plan:
    *lead, d = out.shape or (1,)
    rows, steps = prod(lead), -(-d // (2 * _GROUP))
    return Plan((call.launch(call.op, inputs, rows, steps, _GROUP, rows=rows, d=d, **numbers),))


def _starts(out: Any, arrays: Mapping[str, Any]) -> dict[str, int]:
    """Where the rows of arrays of one shape begin, by the names of kernels."""
    given = [array if array is None or array.shape else array.reshape(1) for array in arrays.values()]
    sizes, strides = shared_axes(out.shape or (1,), given)
    found: dict[str, int] = {}
    for name, array, (*steps, last) in zip(arrays, arrays.values(), strides, strict=True):
        found |= {f"{name}_n{i}": size for i, size in enumerate(sizes, 1)}
        found |= {f"{name}_s{i}": step for i, step in enumerate(steps)}
        found |= {f"{name}_from": _first(array), f"{name}_step": last}
    return found


def _first(array: Any) -> int:
    return 0 if array is None else array.offset // array.itemsize
