"""The launches of mixers with a recurrent state: see `airllm.backends.device.recurrent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airllm.backends.device.launch_plan import ceil_div
from tensor_ops_webgpu.launches import Call, Plan, number

_GROUP = 64
_REDUCTION = 7  # steps of a work-group's reduction
_INPUTS = {
    "convolve": ("x", "taps", "bias", "state"),
    "delta_scan": ("mixed", "rates", "steps", "vectors", "taps", "bias", "inputs", "state"),
    "state_scan": ("mixed", "steps", "vectors", "taps", "bias", "inputs", "state"),
    "gated_norm": ("x", "gate", "weight"),
}
LAUNCHES = tuple(_INPUTS)
_OUTPUTS = 3  # of a scan with the convolution before it
_LONGEST_VECTOR = 256  # floats of each of two in a work-group: convolved_inputs.wgsl


def plan(op: str, arrays: Mapping[str, Any], outs: Mapping[str, Any], n: Mapping[str, Any]) -> Plan:
    """One of LAUNCHES, with the numbers `n`."""
    call = Call(op, arrays, {}, outs)
    tasks, steps = _grid(op, n)
    given = dict(n) | ({"eps": number(n["eps"])} if "eps" in n else {})
    if "groups" in given:  # the name of a kernel's own number of work-groups
        given["vector_groups" if op == "state_scan" else "parts"] = given.pop("groups")
    inputs = {name: name for name in _INPUTS[op]}
    kernel = op.replace("_scan", "_step") if "taps" in arrays else op
    return Plan((call.launch(kernel, inputs, tasks, steps, _GROUP, **given).without_missing(),))


def fuses(arrays: Mapping[str, Any], buffers: int) -> bool:
    """Whether a scan of one token has a kernel with the convolution before it."""
    return len(arrays) + _OUTPUTS <= buffers and arrays["state"].shape[1] <= _LONGEST_VECTOR


def _grid(op: str, n: Mapping[str, Any]) -> tuple[int, int]:
    """How many groups have work, and the steps of an invocation for a task."""
    if op == "convolve":
        return n["tokens"] + n["count"] - 1, ceil_div(n["channels"], _GROUP) * (n["count"] + 1)
    if op == "gated_norm":
        return n["rows"] * n["groups"], 2 * ceil_div(n["dim"], _GROUP) + _REDUCTION
    heads, dim = (n["value_heads"], n["value_dim"]) if op == "delta_scan" else (n["heads"], n["head_dim"])
    of_convolution = n["count"] * (2 * ceil_div(_LONGEST_VECTOR, _GROUP) + 1) + n["channels"]
    return heads * ceil_div(dim, _GROUP), n["tokens"] * token_steps(op, n) + of_convolution


def token_steps(op: str, n: Mapping[str, Any]) -> int:
    """The steps of a scan for a token."""
    return 2 * n["key_dim"] + 1 if op == "delta_scan" else n["state_dim"] + 1
