"""The launches of a layer's experts for a few rows, see `airllm.backends.device.mixture`; and the product of
a row with matrices of two formats, whose kernels are compiled alike.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from airllm.backends.device.launch_plan import ceil_div, is_quantized
from tensor_ops_opencl.launches import SHARES, SHORT, VECTORS_ON_CPU, Launch, Plan, type_of

_GROUP = 64
_MOST_GROUPS = 2**20
_GROUPS_OF_UNIT = 16  # on a GPU, so that few of them make the choice
_ROUTERS_OF_UNIT = 4  # work-groups of a CPU device that compute the norm


def plan(
    op: str,
    arrays: Mapping[str, Any],
    outs: Mapping[str, Any],
    numbers: Mapping[str, Any],
    form: str,
    units: int,
) -> Plan:
    """One of "norm_route", "mixture_up", "mixture_down" and "linear_two"."""
    return LAUNCHES[op](arrays, outs, numbers, form, units)


def _route(arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], form: str, units: int) -> Plan:
    """On a CPU device, each work-group has the normed row in memory of its own."""
    (rows, dim), experts = arrays["x"].shape, arrays["router"].shape[0]
    columns = experts + ("gate" in arrays)
    names = _given(arrays, "x", "post", "residual", "norm", "router", "bias", "gate")
    types = (np.uint32(type_of(arrays.get(name))) for name in ("norm", "router", "gate"))
    arguments = (
        *names,
        "total",
        "normed",
        "logits",
        *_numbers(rows, dim, experts, numbers["norms"]),
        np.float32(numbers["eps"]),
        *types,
    )
    if form == "gpu":
        groups = rows * ceil_div(columns, 2)
        return Plan((Launch("experts", "norm_route", arguments, groups, _GROUP),))
    groups = min(columns, _ROUTERS_OF_UNIT * units)
    launch = Launch("experts", "cpu_norm_route", (*arguments, "own"), groups)
    return Plan((launch,), {"own": 4 * groups * dim})


def _up(arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], form: str, units: int) -> Plan:
    weight, rows, k = arrays["weight"], len(arrays["logits"]), arrays["x"].shape[1]
    shared = arrays.get("shared")
    n = weight.shape[1] // (1 if "up" in arrays else 2)
    shared_n = shared.shape[0] // 2 if shared is not None else 0
    memory = (
        *_given(arrays, "x", "logits", "selection_bias", "scales", "weight", "up", "bias", "shared"),
        "out",
        "ids",
        "weights",
    )
    sizes = (rows, weight.shape[0], *(numbers[name] for name in ("used", "groups", "groups_used")))
    kinds = *(np.uint32(numbers[name]) for name in ("sigmoid", "normalize")), np.float32(numbers["scale"])
    flags = (np.uint32(numbers[name]) for name in ("shared_gate", "scales_input", "activation"))
    gate = np.float32(numbers["limit"]), np.float32(numbers["alpha"])
    arguments = (
        *memory,
        *_numbers(*sizes),
        *kinds,
        *_numbers(n, shared_n, k, numbers["shared_from"]),
        *flags,
        *gate,
    )
    tasks = numbers["used"] * n + shared_n
    return Plan((_launch("mixture_up", arrays, arguments, (k, k), rows, tasks, form, units),))


def _down(arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], form: str, units: int) -> Plan:
    weight, shared, used = arrays["weight"], arrays.get("shared"), arrays["ids"].shape[1]
    rows, width, n = len(arrays["ids"]), outs["out"].shape[1], weight.shape[-1]
    shared_n = shared.shape[-1] if shared is not None else 0
    memory = (*_given(arrays, "x", "ids", "weights", "weight", "bias", "shared"), "out")
    arguments = (*memory, *_numbers(rows, used, n, shared_n, width, numbers["shared_to"]))
    tasks = ceil_div(width, 2) * (2 if numbers["shared_to"] else 1)
    return Plan((_launch("mixture_down", arrays, arguments, (n, shared_n), rows, tasks, form, units),))


def _linear_two(
    arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], form: str, units: int
) -> Plan:
    """The products of one row with `weight`, then with `shared`; with an activation, the first gate those, or
    `factors`, or ones.
    """
    (n, k), activation = arrays["weight"].shape, numbers["activation"]
    more = arrays["shared"].shape[0] if "shared" in arrays else 0
    memory = (*_given(arrays, "x", "weight", "shared", "factors", "bias"), "out")
    arguments = (*memory, *_numbers(n, more, k), np.uint32(activation))
    tasks = n if activation else ceil_div(n, 2) + ceil_div(more, 2)
    return Plan((_launch("linear_two", arrays, arguments, (k, k), 1, tasks, form, units),))


def _launch(
    kernel: str,
    arrays: Mapping[str, Any],
    arguments: tuple,
    lengths: tuple[int, int],
    rows: int,
    tasks: int,
    form: str,
    units: int,
) -> Launch:
    """The kernel for the formats of experts and shared expert, whose rows have these lengths. `tasks`: of
    each of the rows of x.
    """
    name = _format(arrays["weight"])
    shared = _format(arrays["shared"]) if "shared" in arrays else name
    family = f"{'linear_two' if kernel == 'linear_two' else 'mixture'}.{name}.{shared}"
    formats = {name, shared}
    if "up" in arrays:
        formats.add(up := _format(arrays["up"]))
        family += f".{up}"
    if form == "gpu":
        most = _GROUPS_OF_UNIT * units if kernel != "linear_two" else _MOST_GROUPS
        return Launch(family, kernel, arguments, rows * min(tasks, ceil_div(most, rows)), _GROUP)
    vectors = formats <= set(VECTORS_ON_CPU) and not any(each % 32 for each in lengths)
    return Launch(
        family, f"cpu_{kernel}" if vectors else kernel, arguments, rows * min(tasks, SHARES * units)
    )


def _format(weight: Any) -> str:
    return weight.format if is_quantized(weight) else SHORT[weight.dtype.name]


def _given(arrays: Mapping[str, Any], *names: str) -> tuple:
    return tuple(name if name in arrays else None for name in names)


def _numbers(*counts: int) -> tuple:
    return tuple(np.uint64(count) for count in counts)


LAUNCHES = {"norm_route": _route, "mixture_up": _up, "mixture_down": _down, "linear_two": _linear_two}
