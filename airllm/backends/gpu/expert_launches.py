"""The launches of a layer's experts: their choice, their products, and the sum of their results. Gate and up
of a dense feed-forward are products with one expert.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from airllm.backends.device.launch_plan import ceil_div, is_quantized
from airllm.backends.gpu.launches import SHARES, SHORT, VECTORS_ON_CPU, Launch, Plan

_GROUP, _MOST_GROUPS = 64, 2**20


def plan(
    op: str,
    arrays: Mapping[str, Any],
    outs: Mapping[str, Any],
    numbers: Mapping[str, Any],
    form: str,
    units: int,
) -> Plan:
    """One of "choose_experts", "linear_experts" and "mix_experts"."""
    planned = {"choose_experts": _choose, "linear_experts": _linear, "mix_experts": _mix}[op]
    return Plan((planned(arrays, outs, numbers, form, units),))


def gated_linear(arrays: Mapping[str, Any], out: Any, activation: int, form: str, units: int) -> Plan:
    """out = activation(x @ first^T) * (x @ second^T) for one row of x; weight has `first`, then `second`."""
    numbers = {"activation": activation, "shared": 1, "matrices": 1, "limit": 0, "alpha": 0}
    return plan("linear_experts", arrays, {"out": out}, numbers, form, units)


def _choose(
    arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], form: str, units: int
) -> Launch:
    rows, experts = arrays["logits"].shape
    names = ("used", "groups", "groups_used", "group_best")
    sizes = (np.uint64(n) for n in (rows, experts, *(numbers[name] for name in names)))
    kinds = np.uint32(numbers["sigmoid"]), np.uint32(numbers["normalize"]), np.float32(numbers["scale"])
    memory = ("logits", "bias" if "bias" in arrays else None, "ids", "weights")
    group = 1 if form == "cpu" else _GROUP
    return Launch("experts", "choose_experts", (*memory, *sizes, *kinds), min(rows, _MOST_GROUPS), group)


def _linear(
    arrays: Mapping[str, Any], outs: Any, numbers: Mapping[str, Any], form: str, units: int
) -> Launch:
    weight = arrays["weight"]
    name = weight.format if is_quantized(weight) else SHORT[weight.dtype.name]
    (slots, n), k, activation = outs["out"].shape, weight.shape[-1], numbers["activation"]
    sizes = (np.uint64(each) for each in (slots, numbers["shared"], numbers["matrices"], n, k))
    gate = np.uint32(activation), np.float32(numbers["limit"]), np.float32(numbers["alpha"])
    ids, places, bias = (each if each in arrays else None for each in ("ids", "places", "bias"))
    arguments = ("x", ids, places, "weight", bias, "out", *sizes, *gate)
    family, kernel = f"experts.{name}", f"linear_experts_{name}"
    tasks = slots * (n if activation else ceil_div(n, 2))
    if form == "gpu":
        return Launch(family, kernel, arguments, min(tasks, _MOST_GROUPS), _GROUP)
    if name in VECTORS_ON_CPU and k % 32 == 0:
        return Launch(family, f"cpu_{kernel}", arguments, min(n, SHARES * units))
    return Launch(family, kernel, arguments, min(tasks, SHARES * units))


def _mix(arrays: Mapping[str, Any], outs: Any, numbers: Any, form: str, units: int) -> Launch:
    used, (rows, n) = arrays["weights"].shape[1], outs["out"].shape
    arguments = ("results", "weights", "out", *(np.uint64(each) for each in (rows, used, n)))
    group = 1 if form == "cpu" else _GROUP
    groups = min(ceil_div(rows * n, 256), 4 * units) if form == "cpu" else ceil_div(rows * n, group)
    return Launch("experts", "mix_experts", arguments, min(groups, _MOST_GROUPS), group)
