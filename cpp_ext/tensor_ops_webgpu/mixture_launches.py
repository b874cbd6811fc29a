"""The launches of a layer's experts for a few rows, see `airllm.backends.device.mixture`; and the products of
a row with matrices of several formats, whose kernels are made alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from airllm.backends.device.launch_plan import TYPES, ceil_div, is_quantized
from airllm.backends.device.stacks import data_of
from tensor_ops_webgpu.expert_launches import steps_of_choice
from tensor_ops_webgpu.launches import LANES_ON_CPU, Call, Launch, Plan, number, steps_of_row

_GROUP = 64
_REDUCTION = 7  # steps of a work-group's reduction
_MOST_GROUPS, _MOST_ON_CPU = 1024, 64  # that make the choice
_BUFFERS = 9  # of the first two kernels, at least
_SHARED = ("shared_expert", "feed_forward")  # the second beside experts, in their launches
_MOST_STEPS = 16384  # of a work-group's products after its norm
WIDEST_NORM = 3840  # floats that a work-group has in memory of its own: own_row.wgsl
_COLUMNS = 32  # of a head's matrix that a work-group multiplies: latent_append.wgsl
_LONGEST_SUM = 1024  # of queries that attention sums: attention.wgsl
_LONGEST_ROW = 2048  # that a work-group multiplies by the matrix of queries: latent_append.wgsl
_STEPS_OF_BLOCKS = 2 * (32 + 17) + 17  # of two blocks that a token keeps
_FLOATS_OF_STEP = 33  # steps of a product of 32 floats


def plan(
    op: str, arrays: Mapping[str, Any], outs: Mapping[str, Any], numbers: Mapping[str, Any], lanes: int
) -> Plan:
    """One of LAUNCHES."""
    launch = LAUNCHES[op](Call(op, arrays, {}, outs, lanes), numbers)
    scratch = {"own": 4 * launch.groups * arrays["x"].shape[1]} if "own" in launch.outputs else {}
    return Plan((launch,), scratch)


def fuses(weights: Mapping[str, Any], buffers: int) -> bool:
    """Whether there are kernels for a layer's experts, with so many buffers: of blocks that are read as
    words, and of floats whose rows are multiples of 32.
    """
    experts = ("experts.gate", "experts.up", "experts.gate_up", "experts.down")
    names = (*experts, *(f"{part}.{name}" for part in _SHARED for name in ("gate", "up", "down")))
    given = [weights[name] for name in names if name in weights]
    return _bound_by_up(weights) <= buffers and buffers >= _BUFFERS and all(map(in_units, given))


def _bound_by_up(weights: Mapping[str, Any]) -> int:
    """How many buffers "mixture_up" has."""
    names = ("selection_bias", "scales", "gate_up_bias", "gate", "latent_in")
    more = sum(f"experts.{name}" in weights for name in names)
    for part in _SHARED:
        if f"{part}.down" in weights and f"{part}.gate" not in weights:
            more += 1
        elif f"{part}.down" in weights:
            gate, up = (data_of(weights[f"{part}.{name}"]).memory for name in ("gate", "up"))
            more += 1 if gate is up else 2
    return 6 + more


def in_units(weight: Any) -> bool:
    """Whether kernels read a weight in units of 32 values."""
    return is_quantized(weight) or weight.shape[-1] % 32 == 0


def _route(call: Call, numbers: Mapping[str, Any]) -> Launch:
    (rows, d), experts = call.arrays["x"].shape, call.arrays["router"].shape[0]
    names = ("x", "post", "residual", "norm", "router", "bias", "gate")
    sizes = {
        "rows": rows,
        "d": d,
        "experts": experts,
        "eps": number(numbers["eps"]),
        "norms": numbers["norms"],
    }
    tasks = rows * ceil_div(experts + call.has("gate"), 2)
    steps = (2 + numbers["norms"]) * ceil_div(d, _GROUP) + 4 * _REDUCTION
    inputs = {name: name for name in names}
    return call.launch(call.op, inputs, tasks, steps, _GROUP, **sizes).without_missing()


def _up(call: Call, numbers: Mapping[str, Any]) -> Launch:
    weight, shared = call.arrays["weight"], call.arrays.get("shared")
    rows, k, alone = len(call.arrays["logits"]), weight.shape[2], not numbers["gated"]
    n = weight.shape[1] // (1 if alone or call.has("up") else 2)
    shared_n, shared_k = (0, k) if shared is None else shared.shape
    shared_n //= 1 if alone or call.has("shared_up") else 2
    floats = {name: number(numbers[name]) for name in ("scale", "limit", "alpha")}
    sizes = {"rows": rows, "experts": weight.shape[0], "n": n, "shared_n": shared_n, "k": k}
    sizes["shared_k"] = shared_k
    columns = _GROUP // call.lanes
    tasks = numbers["used"] * ceil_div(n, columns) + ceil_div(shared_n, columns)
    each = 2 * (_steps_of_row(weight, max(k, shared_k), call.lanes) + call.lanes) + 1
    most = _MOST_ON_CPU if call.lanes == LANES_ON_CPU else _MOST_GROUPS
    of_row = min(tasks, ceil_div(most, rows))
    steps = steps_of_choice(weight.shape[0], numbers) + ceil_div(tasks, of_row) * each
    inputs = {"a": "x", "y": "y", "logits": "logits", "selection_bias": "selection_bias", "scales": "scales"}
    inputs |= _weights() | {"up": "up", "shared_up": "shared_up"}
    given = dict(numbers) | floats | sizes
    launch = call.launch(call.op, inputs, rows * of_row, steps, _GROUP, **given)
    return _of_formats(call, launch.without_missing())


def _down(call: Call, numbers: Mapping[str, Any]) -> Launch:
    weight, shared, (rows, used) = call.arrays["weight"], call.arrays.get("shared"), call.arrays["ids"].shape
    (width, n), apart = weight.shape[1:], numbers["shared_to"]
    shared_width, shared_n = (0, 0) if shared is None else shared.shape
    sizes = {"rows": rows, "used": used, "n": n, "shared_n": shared_n, "width": width}
    sizes |= {"shared_to": apart, "shared_width": shared_width}
    columns = _GROUP // call.lanes
    tasks = rows * (ceil_div(width, columns) + (ceil_div(shared_width, columns) if apart else 0))
    steps = used * (_steps_of_row(weight, n, call.lanes) + 1) + 2 * call.lanes
    steps += 0 if shared is None else _steps_of_row(shared, shared_n, call.lanes)
    inputs = {"a": "x", "ids": "ids", "weights": "weights"} | _weights()
    return _of_formats(call, call.launch(call.op, inputs, tasks, steps, _GROUP, **sizes))


def _linear_beside(call: Call, numbers: Mapping[str, Any]) -> Launch:
    """With `rows`, each work-group has the row, a norm of a sum, for itself."""
    n, k = call.arrays["weight"].shape
    more, last = (call.arrays[name].shape[0] if call.has(name) else 0 for name in ("shared", "up"))
    n //= 1 + numbers["paired"]
    sizes = {"n": n, "more": more, "last": last, "k": k} | {
        name: numbers[name] for name in ("activation", "paired", "factors_from")
    }
    sizes["factors_n"] = call.arrays["factors"].size if call.has("factors") else 0
    columns = _GROUP // call.lanes
    tasks = sum(ceil_div(each, columns) for each in ((n,) if numbers["activation"] else (n, more, last)))
    given = [call.arrays[name] for name in ("weight", "shared", "up") if call.has(name)]
    steps = sum((1 + numbers["paired"]) * _steps_of_row(each, k, call.lanes) for each in given)
    steps += 2 * call.lanes + 1
    inputs = {"a": "x", "factors": "factors"} | _weights() | {"up": "up"}
    floats = {"gate_factor": number(numbers["gate_factor"])}
    if "rows" not in call.results:
        launch = call.launch("linear_beside", inputs, tasks, steps, _GROUP, **sizes, **floats)
        return _of_formats(call, launch.without_missing())
    most = _MOST_ON_CPU if call.lanes == LANES_ON_CPU else _most_norms(k)
    groups = min(tasks, max(most, ceil_div(tasks * steps, _MOST_STEPS)))
    steps = 4 * ceil_div(k, _GROUP) + 2 * _REDUCTION + ceil_div(tasks, groups) * (steps + 1)
    inputs |= {name: name for name in ("post", "residual", "scale", "norm")}
    sizes["apart"] = call.results["rows"].shape[1]
    floats |= {name: number(numbers[name]) for name in ("eps", "factor")}
    launch = call.launch("normed_linear", inputs, groups, steps, _GROUP, **sizes, **floats)
    if k > WIDEST_NORM:
        numbers = launch.numbers | {"own_type": np.uint32(TYPES["float32"])}
        launch = replace(launch, outputs={**launch.outputs, "own": "own"}, numbers=numbers)
    return _of_formats(call, launch.without_missing())


def _latent_append(call: Call, numbers: Mapping[str, Any]) -> Launch:
    weight, queries, parts = call.arrays["weight"], call.arrays.get("queries"), len(call.results["q"])
    columns = _GROUP // call.lanes
    tasks = numbers["heads"] * (parts + ceil_div(2 * numbers["r"], _COLUMNS)) + 1
    of_query = 0 if queries is None else _steps_of_row(queries, numbers["k"], call.lanes) + 2 * call.lanes
    of_rows = ceil_div(numbers["rank"], _GROUP) * (_steps_of_row(weight, _COLUMNS, 1) + 1)
    each = ceil_div(_COLUMNS, columns) * (of_query + 1) + of_rows + parts
    each += _STEPS_OF_BLOCKS * ceil_div(numbers["rank"] + 2 * numbers["r"], 64 * _GROUP)
    most = _MOST_ON_CPU if call.lanes == LANES_ON_CPU else _MOST_GROUPS
    groups = min(tasks, max(most, ceil_div(tasks * each, _MOST_STEPS)))
    steps = 2 * ceil_div(numbers["k"], _GROUP) + 2 * _REDUCTION + of_rows + ceil_div(tasks, groups) * each
    inputs = {"a": "x", "post": "x_norm", "b": "weight", "shared": "queries"}
    inputs |= {name: name for name in ("keep", "keep_norm", "cos", "sin")}
    given = dict(numbers) | {name: number(numbers[name]) for name in ("eps", "factor")}
    launch = call.launch(call.op, inputs, groups, steps, _GROUP, **given).without_missing()
    return replace(launch, lanes=call.lanes, shared_format=getattr(queries, "format", ""))


def fuses_latents(arrays: Mapping[str, Any], buffers: int) -> bool:
    """Whether there is a kernel for a token's queries for latents with these matrices, and what it keeps."""
    queries, cache = arrays.get("queries"), arrays["cache"]
    wide = arrays["keep_norm"].size + 2 * arrays["cos"].shape[-1]
    matrices = [arrays["weight"]] if queries is None else [arrays["weight"], queries]
    short = wide <= _LONGEST_SUM and (queries is None or queries.shape[-1] <= _LONGEST_ROW)
    # It writes halves in pairs, and blocks: two are whole words.
    whole = wide % 64 == cache.offset % 4 == 0 if cache.dtype == np.uint8 else wide % 2 == 0
    return short and whole and len(arrays) + 1 <= buffers and all(map(in_units, matrices))


def _linear_sum(call: Call, numbers: Mapping[str, Any]) -> Launch:
    weight, other = call.arrays["weight"], call.arrays["shared"]
    (n, k), other_k = weight.shape, other.shape[1]
    tasks = ceil_div(n, _GROUP // call.lanes)
    steps = _steps_of_row(weight, k, call.lanes) + _steps_of_row(other, other_k, call.lanes) + 2 * call.lanes
    inputs = {"a": "x", "b": "weight", "y": "y", "shared": "shared"}
    floats = {name: number(numbers[name]) for name in ("factor", "other_factor")}
    sizes = {"n": n, "k": k, "other_k": other_k}
    return _of_formats(call, call.launch(call.op, inputs, tasks, steps, _GROUP, **sizes, **floats))


def fuses_norm(arrays: Mapping[str, Any], buffers: int) -> bool:
    """Whether the product with these matrices has a kernel with the norm before it."""
    weights = [arrays[name] for name in ("weight", "shared", "up") if name in arrays]
    results = 2 + (arrays["x"].shape[1] > WIDEST_NORM)
    return len(arrays) + results <= buffers and all(map(in_units, weights))


def _most_norms(width: int) -> int:
    """Groups of a GPU that each compute the norm of a row: of wide rows fewer, which read as much in all."""
    return max(1, _MOST_GROUPS * WIDEST_NORM // max(width, WIDEST_NORM))


def _weights() -> dict[str, str]:
    return {"b": "weight", "bias": "bias", "shared": "shared"}


def _steps_of_row(weight: Any, k: int, lanes: int) -> int:
    if is_quantized(weight):
        return steps_of_row(weight, k, lanes)
    return ceil_div(k, 32 * lanes) * _FLOATS_OF_STEP


def _of_formats(call: Call, launch: Launch) -> Launch:
    fields = {"shared_format": "shared", "up_format": "up", "shared_up_format": "shared_up"}
    given = {field: getattr(call.arrays.get(name), "format", "") for field, name in fields.items()}
    return replace(launch, lanes=call.lanes, **given)


LAUNCHES = {
    "norm_route": _route, "mixture_up": _up, "mixture_down": _down, "linear_beside": _linear_beside,
    "latent_append": _latent_append, "linear_sum": _linear_sum,
}  # fmt: skip
