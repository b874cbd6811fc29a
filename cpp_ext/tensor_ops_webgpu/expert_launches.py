"""The launches of a layer's experts: their choice, their products, and the sum of their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from airllm.backends.device.launch_plan import ceil_div, is_quantized
from tensor_ops_webgpu.launches import Call, Launch, Plan, number, steps_of_row

_GROUP = 64
_REDUCTION = 7  # steps of a work-group's reduction


def plan(
    op: str, arrays: Mapping[str, Any], outs: Mapping[str, Any], numbers: Mapping[str, Any], lanes: int
) -> Plan:
    """One of "choose_experts", "linear_experts" and "mix_experts"."""
    planned = {"choose_experts": _choose, "linear_experts": _linear, "mix_experts": _mix}[op]
    return Plan((planned(Call(op, arrays, {}, outs, lanes), numbers),))


def _choose(call: Call, numbers: Mapping[str, Any]) -> Launch:
    rows, experts = call.arrays["logits"].shape
    given = dict(numbers) | {"rows": rows, "experts": experts, "scale": number(numbers["scale"])}
    inputs = {"logits": "logits", "selection_bias": "bias"}
    return call.launch(call.op, inputs, rows, steps_of_choice(experts, numbers), _GROUP, **given)


def steps_of_choice(experts: int, numbers: Mapping[str, Any]) -> int:
    """The steps of an invocation for the choice of a row."""
    own = ceil_div(experts, _GROUP)
    return own * (3 + experts + 2 * numbers["groups"]) + experts + 2 * numbers["used"] + 2 * _REDUCTION


def _linear(call: Call, numbers: Mapping[str, Any]) -> Launch:
    weight, (slots, n), activation = call.arrays["weight"], call.shape, numbers["activation"]
    k, gated = weight.shape[-1], 1 + (activation > 0)
    sizes = {"slots": slots, "shared_by": numbers["shared"], "matrices": numbers["matrices"]}
    sizes |= {"n": n, "k": k, "rows": gated * n}
    sizes |= {"activation": activation, "limit": number(numbers["limit"]), "alpha": number(numbers["alpha"])}
    inputs = {"a": "x", "ids": "ids", "places": "places", "b": "weight", "bias": "bias"}
    if is_quantized(weight):
        columns = _GROUP // call.lanes
        steps = gated * steps_of_row(weight, k, call.lanes) + 2 * call.lanes
        launch = call.launch(
            "linear_experts_blocks", inputs, slots * ceil_div(n, columns), steps, _GROUP, **sizes
        )
        return replace(launch, lanes=call.lanes)
    steps = 2 * gated * (3 * ceil_div(k, _GROUP) + 2 * _REDUCTION)
    return call.launch("linear_experts", inputs, slots * ceil_div(n, 2), steps, _GROUP, **sizes)


def _mix(call: Call, numbers: Mapping[str, Any]) -> Launch:
    used, count = call.arrays["weights"].shape[1], prod(call.shape)
    inputs = {"results": "results", "weights": "weights"}
    tasks = ceil_div(count, 2 * _GROUP)
    return call.launch(call.op, inputs, tasks, 2 * used + 1, _GROUP, used=used, n=call.shape[1], count=count)
