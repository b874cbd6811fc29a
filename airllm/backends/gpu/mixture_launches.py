"""The launches of a layer's experts for a few rows, see `airllm.backends.device.mixture`; and the products
of a row with matrices of several formats, whose kernels are compiled alike.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from airllm.backends.device.launch_plan import TYPES, ceil_div, is_quantized
from airllm.backends.gpu.launches import SHARES, SHORT, VECTORS_ON_CPU, Launch, Plan, type_of

_GROUP = 64
_MOST_GROUPS = 2**20
_GROUPS_OF_UNIT = 16  # on a GPU, so that few of them make the choice
_NORMS_OF_UNIT = 8  # on a GPU, of products whose groups compute the norm before them, up to this width:
_NARROW_NORM = 4096
_OTHERS = ("shared", "up", "shared_up")  # matrices beside `weight`, of formats of their own
# Kernels whose text is in a header with others.
_FAMILIES = {"mixture_up": "mixture", "mixture_down": "mixture", "linear_sum": "linear_beside"}
_COLUMNS = 32  # of a head's matrix that a work-group multiplies: latent_append.inc
_ROUTERS_OF_UNIT = 4  # work-groups of a CPU device that compute the norm


def plan(
    op: str,
    arrays: Mapping[str, Any],
    outs: Mapping[str, Any],
    numbers: Mapping[str, Any],
    form: str,
    units: int,
) -> Plan:
    """One of LAUNCHES."""
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
    weight, rows, alone = arrays["weight"], len(arrays["logits"]), not numbers["gated"]
    shared, k = arrays.get("shared"), weight.shape[2]
    n = weight.shape[1] // (1 if alone or "up" in arrays else 2)
    shared_n, shared_k = (0, k) if shared is None else shared.shape
    shared_n //= 1 if alone or "shared_up" in arrays else 2
    given = ("x", "y", "logits", "selection_bias", "scales", "weight", "up", "bias", "shared", "shared_up")
    memory = (
        *_given(arrays, *given),
        "out",
        "ids",
        "weights",
    )
    sizes = (
        rows,
        weight.shape[0],
        *(numbers[name] for name in ("used", "groups", "groups_used", "group_best")),
    )
    kinds = *(np.uint32(numbers[name]) for name in ("sigmoid", "normalize")), np.float32(numbers["scale"])
    flags = (np.uint32(numbers[name]) for name in ("shared_gate", "scales_input", "gated", "activation"))
    gate = np.float32(numbers["limit"]), np.float32(numbers["alpha"])
    arguments = (
        *memory,
        *_numbers(*sizes),
        *kinds,
        *_numbers(n, shared_n, k, shared_k, numbers["shared_from"]),
        *flags,
        *gate,
    )
    tasks = numbers["used"] * n + shared_n
    most = _GROUPS_OF_UNIT * units
    return Plan((_launch("mixture_up", arrays, arguments, (k, shared_k), rows, tasks, form, units, most),))


def _down(arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], form: str, units: int) -> Plan:
    weight, shared, used = arrays["weight"], arrays.get("shared"), arrays["ids"].shape[1]
    rows, (width, n), apart = len(arrays["ids"]), weight.shape[1:], numbers["shared_to"]
    shared_width, shared_n = shared.shape if shared is not None else (0, 0)
    memory = (*_given(arrays, "x", "ids", "weights", "weight", "bias", "shared"), "out")
    arguments = (*memory, *_numbers(rows, used, n, shared_n, width, shared_width, apart))
    tasks = ceil_div(width, 2) + (ceil_div(shared_width, 2) if apart else 0)
    most = _GROUPS_OF_UNIT * units
    return Plan((_launch("mixture_down", arrays, arguments, (n, shared_n), rows, tasks, form, units, most),))


def _linear_beside(
    arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], form: str, units: int
) -> Plan:
    """The products of a row with `weight`, then with `shared` and `up`; with an activation, the first gate
    those of `shared`, or if `paired` of the other half of `weight`, or `factors`, or ones; else `factors`
    multiply those from `factors_from` on. If there are `rows`, each work-group has the row, a norm of a sum,
    in memory of its own.
    """
    (n, k), activation = arrays["weight"].shape, numbers["activation"]
    sizes = [
        n // (1 + numbers["paired"]),
        *(arrays[name].shape[0] if name in arrays else 0 for name in _OTHERS[:2]),
    ]
    tasks = sizes[0] if activation else sum(ceil_div(each, 2) for each in sizes)
    own = "own" if "rows" in outs else None
    names = ("x", "post", "residual", "scale", "norm", "weight", "shared", "up", "factors", "bias")
    memory = (*_given(arrays, *names), "rows" if own else None, "out", own)
    apart = outs["rows"].shape[1] if own else 0
    floats = (np.float32(numbers[name]) for name in ("eps", "factor", "gate_factor"))
    flags = np.uint32(activation), np.uint32(numbers["paired"])
    scaled = numbers["factors_from"], arrays["factors"].size if "factors" in arrays else 0
    most = _most_norms(k, units) if own else _MOST_GROUPS
    arguments = (*memory, *_numbers(*sizes, k, apart, *scaled), *floats, *flags)
    launch = _launch("linear_beside", arrays, arguments, (k,), 1, tasks, form, units, most)
    return Plan((launch,), {"own": 4 * launch.groups * k} if own else {})


def _latent_append(
    arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], form: str, units: int
) -> Plan:
    """A token's queries for latents, in parts, and what it keeps: see `airllm.backends.device.latents`. If
    the row that is multiplied is normalized, each work-group has it in memory of its own.
    """
    parts, k, r = len(outs["q"]), numbers["k"], numbers["r"]
    tasks = numbers["heads"] * (parts + ceil_div(2 * r, _COLUMNS)) + 1
    own = "own" if "x_norm" in arrays else None
    names = ("x", "x_norm", "weight", "queries", "keep", "keep_norm", "cos", "sin")
    sizes = ("x_from", "keep_from", "cache_from", "heads", "k", "plain", "rank", "r")
    flags = numbers["interleaved"], TYPES[outs["cache"].dtype.name]
    arguments = (
        *(*_given(arrays, *names), "q", "cache", own),
        *_numbers(*(numbers[name] for name in sizes)),
        *map(np.uint32, flags),
        *(np.float32(numbers[name]) for name in ("eps", "factor")),
    )
    weights = {"weight": arrays["weight"], "shared": arrays.get("queries", arrays["weight"])}
    most = _most_norms(k, units) if own else _MOST_GROUPS
    launch = _launch("latent_append", weights, arguments, (k,), 1, tasks, form, units, most)
    return Plan((launch,), {"own": 4 * launch.groups * k} if own else {})


def _linear_merged(
    arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], form: str, units: int
) -> Plan:
    """The products of heads with what each attended to, of which `partial` has parts (heads, splits, 2 +
    k).
    """
    (heads, splits, _), (_, n, k) = arrays["partial"].shape, arrays["weight"].shape
    arguments = ("partial", "weight", "out", "own", *_numbers(heads, splits, n, k))
    tasks, most = heads * ceil_div(n, _COLUMNS), _most_norms(k, units)
    weights = {"weight": arrays["weight"]}
    launch = _launch("linear_merged", weights, arguments, (k,), 1, tasks, form, units, most)
    return Plan((launch,), {"own": 4 * launch.groups * k})


def _most_norms(width: int, units: int) -> int:
    """Groups of a GPU that each compute the norm of a row: of wide rows fewer, which read as much in all."""
    return units * max(1, _NORMS_OF_UNIT * _NARROW_NORM // max(width, _NARROW_NORM))


def _linear_sum(
    arrays: Mapping[str, Any], outs: Mapping[str, Any], numbers: Mapping[str, Any], form: str, units: int
) -> Plan:
    """x times `weight`, times `factor`, plus y times `shared`, times `other_factor`."""
    (n, k), other_k = arrays["weight"].shape, arrays["shared"].shape[1]
    floats = np.float32(numbers["factor"]), np.float32(numbers["other_factor"])
    arguments = ("x", "weight", "y", "shared", "out", *_numbers(n, k, other_k), *floats)
    tasks = ceil_div(n, 2)
    return Plan(
        (_launch("linear_sum", arrays, arguments, (k, other_k), 1, tasks, form, units, _MOST_GROUPS),)
    )


def _launch(
    kernel: str,
    arrays: Mapping[str, Any],
    arguments: tuple,
    lengths: tuple[int, ...],
    rows: int,
    tasks: int,
    form: str,
    units: int,
    most: int,
) -> Launch:
    """The kernel for the formats of its matrices, whose rows have these lengths. `tasks`: of each of the rows
    of x; `most`: groups of a GPU.
    """
    name = _format(arrays["weight"])
    formats = [name, *(_format(arrays[other]) if other in arrays else "" for other in _OTHERS)]
    formats[1] = formats[1] or name
    family = f"{_FAMILIES.get(kernel, kernel)}.{'.'.join(formats).rstrip('.')}"
    if form == "gpu":
        return Launch(family, kernel, arguments, rows * min(tasks, ceil_div(most, rows)), _GROUP)
    vectors = set(filter(None, formats)) <= set(VECTORS_ON_CPU) and not any(each % 32 for each in lengths)
    return Launch(
        family, f"cpu_{kernel}" if vectors else kernel, arguments, rows * min(tasks, SHARES * units)
    )


def _format(weight: Any) -> str:
    return weight.format if is_quantized(weight) else SHORT[weight.dtype.name]


def _given(arrays: Mapping[str, Any], *names: str) -> tuple:
    return tuple(name if name in arrays else None for name in names)


def _numbers(*counts: int) -> tuple:
    return tuple(np.uint64(count) for count in counts)


LAUNCHES = {
    "norm_route": _route, "mixture_up": _up, "mixture_down": _down, "linear_beside": _linear_beside,
    "latent_append": _latent_append, "linear_merged": _linear_merged, "linear_sum": _linear_sum,
}  # fmt: skip
