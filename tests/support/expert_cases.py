"""Small calls of the kernels of experts, with their exact results in float64."""

from collections.abc import Iterator

import numpy as np
from kernel_cases import Case, normal
from tensor_cases import At, activated, weight_of

from tensor_ops_opencl import expert_launches
from tensor_ops_opencl.launches import Plan

WIDTHS = {"f32": (41, 64), "q4_0": (64, 96), "q6_k": (256, 512)}  # of formats, each of which is a family


def expert_cases(form: str) -> Iterator[tuple[str, Case, Plan]]:
    """The family of the kernels, the call, and its plan."""
    rng = np.random.default_rng(0)
    for groups, groups_used, sigmoid in ((1, 1, 0), (4, 2, 1)):
        yield "experts", *_choose(rng, form, groups, groups_used, sigmoid)
    yield "experts", *_mix(rng, form)
    for name in WIDTHS:
        for shared, k in zip((1, 2), WIDTHS[name], strict=True):
            yield f"experts.{name}", *_linear(rng, form, name, shared, k)
        for activation in (1, 2, 3, 4):
            yield f"experts.{name}", *_gated(rng, form, name, activation, k)


def _choose(
    rng: np.random.Generator, form: str, groups: int, groups_used: int, sigmoid: int
) -> tuple[Case, Plan]:
    rows, experts, used = 5, 12, 3
    logits, bias = normal(rng, (rows, experts)), normal(rng, (experts,))
    wide = logits.astype(np.float64)
    e = np.exp(wide)
    scores = 1 / (1 + np.exp(-wide)) if sigmoid else e / e.sum(axis=-1, keepdims=True)
    wanted = (scores + bias).reshape(rows, groups, -1)
    best = np.sort(wanted, axis=-1)[..., -2:].sum(axis=-1)
    hidden = best < np.sort(best, axis=-1)[:, -groups_used, None]
    wanted = np.where(hidden[..., None], -np.inf, wanted).reshape(rows, experts)
    ids = np.argsort(-wanted, axis=-1)[:, :used]
    weights = np.take_along_axis(scores, ids, axis=-1)
    weights *= 1.5 / weights.sum(axis=-1, keepdims=True)
    numbers = {
        "used": used, "groups": groups, "groups_used": groups_used, "sigmoid": sigmoid, "normalize": 1,
        "scale": 1.5,
    }  # fmt: skip
    arrays = {"logits": logits, "bias": bias}
    case = Case("choose_experts", arrays, {"ids": ids.astype(np.int32), "weights": weights}, numbers)
    return case, expert_launches.plan(case.op, arrays, {}, numbers, form, 1)


def _mix(rng: np.random.Generator, form: str) -> tuple[Case, Plan]:
    rows, used, n = 7, 3, 130
    results, weights = normal(rng, (rows * used, n)), normal(rng, (rows, used))
    exact = (results.astype(np.float64).reshape(rows, used, n) * weights[..., None]).sum(axis=1)
    arrays = {"results": results, "weights": weights}
    plan = expert_launches.plan("mix_experts", arrays, {"out": At(exact)}, {}, form, 1)
    return Case("mix_experts", arrays, {"out": exact}), plan


def _linear(rng: np.random.Generator, form: str, name: str, shared: int, k: int) -> tuple[Case, Plan]:
    """Rows of tokens, or of slots; floats have rows that are no whole units."""
    slots, experts, n = 6, 3, 5
    x, ids = normal(rng, (slots // shared, k)), np.array([2, 0, 1, 1, 2, 0], np.int32)
    bias, (stored, values) = normal(rng, (experts, n)), weight_of(rng, name, (experts, n, k))
    exact = np.einsum("sk,snk->sn", np.repeat(x, shared, axis=0).astype(np.float64), values[ids]) + bias[ids]
    arrays = {"x": x, "ids": ids, "weight": stored, "bias": bias}
    numbers = {"shared": shared, "activation": 0, "limit": 0.0, "alpha": 0.0}
    plan = expert_launches.plan("linear_experts", arrays, {"out": At(exact)}, numbers, form, 1)
    return Case("linear_experts", arrays, {"out": exact}, numbers), plan


def _gated(rng: np.random.Generator, form: str, name: str, activation: int, k: int) -> tuple[Case, Plan]:
    """Experts with n rows that gate n others. Gates are small: gelu magnifies the errors of large ones."""
    slots, experts, n, limit, alpha = 4, 3, 5, 7.0, 1.702
    x, ids = normal(rng, (slots, k)) / np.float32(np.sqrt(k)), np.array([2, 0, 1, 1], np.int32)
    bias, (stored, values) = normal(rng, (experts, 2 * n)), weight_of(rng, name, (experts, 2 * n, k))
    both = np.einsum("sk,snk->sn", x.astype(np.float64), values[ids]) + bias[ids]
    gate, up = np.split(both, 2, axis=-1)
    if activation == 4:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        exact = gate / (1 + np.exp(-alpha * gate)) * (up + 1)
    else:
        exact = activated(gate, activation) * up
    arrays = {"x": x, "ids": ids, "weight": stored, "bias": bias}
    numbers = {"shared": 1, "activation": activation, "limit": limit, "alpha": alpha}
    plan = expert_launches.plan("linear_experts", arrays, {"out": At(exact)}, numbers, form, 1)
    return Case("linear_experts", arrays, {"out": exact}, numbers), plan
