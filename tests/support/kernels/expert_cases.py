"""Small calls of the kernels of experts, with their exact results in float64."""

from collections.abc import Iterator

import numpy as np
from kernel_cases import Case, normal
from tensor_cases import At, activated, weight_of

from airllm.backends.gpu import expert_launches, mixture_launches
from airllm.backends.gpu.launches import Plan

# Formats of experts and of a shared expert, for each of which there is a family, and lengths of rows.
MIXTURES = {("f32", "f32"): (41, 64), ("q8_0", "q4_0"): (64,), ("q6_k", "q4_0"): (256,)}
THREE = ("q8_0", "q4_0", "q6_k")
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
    for norms in range(3):
        yield "experts", *_norm_route(rng, form, norms)
    for formats, lengths in MIXTURES.items():
        for k in lengths:
            family = f"mixture.{'.'.join(formats)}"
            yield family, *_mixture_up(rng, form, formats, k, scales_input=k != 64)
            yield family, *_mixture_alone(rng, form, formats, k)
            yield family, *_mixture_down(rng, form, formats, k, apart=k == 64)
            for activation, second in ((0, "other"), (1, "other"), (2, "factors"), (3, ""), (1, "paired")):
                of = formats if second == "other" else (formats[0], formats[0])
                for normed in (False, True):
                    family = f"linear_beside.{'.'.join(of)}"
                    yield family, *_linear_beside(rng, form, of, k, activation, second, normed)
            for each in (False, True):
                family = f"linear_beside.{'.'.join(formats)}"
                yield family, *_linear_sum(rng, form, formats, k, longer=each)
    for normed in (False, True):
        family = f"linear_beside.{'.'.join(THREE)}"
        yield family, *_linear_beside(rng, form, THREE, 256, 0, "other", normed)


def _choose(
    rng: np.random.Generator, form: str, groups: int, groups_used: int, sigmoid: int
) -> tuple[Case, Plan]:
    rows, experts, used = 5, 12, 3
    logits, bias = normal(rng, (rows, experts)), normal(rng, (experts,))
    ids, weights = chosen(logits, bias, used, groups, groups_used, sigmoid)
    weights *= 1.5 / weights.sum(axis=-1, keepdims=True)
    numbers = {
        "used": used, "groups": groups, "groups_used": groups_used, "group_best": 2, "sigmoid": sigmoid,
        "normalize": 1, "scale": 1.5,
    }  # fmt: skip
    arrays = {"logits": logits, "bias": bias}
    case = Case("choose_experts", arrays, {"ids": ids.astype(np.int32), "weights": weights}, numbers)
    return case, expert_launches.plan(case.op, arrays, {}, numbers, form, 1)


def chosen(
    logits: np.ndarray, bias: np.ndarray, used: int, groups: int, groups_used: int, sigmoid: int
) -> tuple[np.ndarray, np.ndarray]:
    """The chosen experts of each row, and their scores."""
    wide = logits.astype(np.float64)
    e = np.exp(wide)
    scores = 1 / (1 + np.exp(-wide)) if sigmoid else e / e.sum(axis=-1, keepdims=True)
    wanted = (scores + bias).reshape(len(logits), groups, -1)
    best = np.sort(wanted, axis=-1)[..., -2:].sum(axis=-1)
    hidden = best < np.sort(best, axis=-1)[:, -groups_used, None]
    wanted = np.where(hidden[..., None], -np.inf, wanted).reshape(logits.shape)
    ids = np.argsort(-wanted, axis=-1)[:, :used]
    return ids, np.take_along_axis(scores, ids, axis=-1)


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
    numbers = {"shared": shared, "matrices": experts, "activation": 0, "limit": 0.0, "alpha": 0.0}
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
    numbers = {"shared": 1, "matrices": experts, "activation": activation, "limit": limit, "alpha": alpha}
    plan = expert_launches.plan("linear_experts", arrays, {"out": At(exact)}, numbers, form, 1)
    return Case("linear_experts", arrays, {"out": exact}, numbers), plan


def _norm_route(rng: np.random.Generator, form: str, norms: int) -> tuple[Case, Plan]:
    """Rows that are no whole vectors, of a router with an odd number of experts, with and without a gate. Of
    two norms, the second is for others than the router, and x has one too.
    """
    rows, dim, experts, eps = 2, 75, 5, 0.25
    x, router = normal(rng, (rows, dim)), normal(rng, (experts, dim), np.float16)
    arrays = {"x": x, "router": router, "bias": normal(rng, (experts,))}
    matrix, wide = router.astype(np.float64), x.astype(np.float64)

    def rms(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)

    exact = {}
    if norms:
        arrays |= {"residual": normal(rng, (rows, dim)), "norm": normal(rng, (norms, dim))}
        arrays |= {"gate": normal(rng, (1, dim))} | ({"post": normal(rng, (dim,))} if norms == 2 else {})
        matrix = np.concatenate([matrix, arrays["gate"]])
        total = (rms(wide) * arrays["post"] if norms == 2 else wide) + arrays["residual"]
        normed = np.stack([rms(total) * each for each in arrays["norm"]])
        exact, wide = {"total": total, "normed": normed}, normed[0]
    exact = {"logits": wide @ matrix.T} | exact
    exact["logits"][:, :experts] += arrays["bias"]
    plan = mixture_launches.plan("norm_route", arrays, exact, {"eps": eps, "norms": norms}, form, 1)
    if not norms:
        plan = Plan(plan.launches, {**plan.scratch, "total": 4, "normed": 4})
    return Case("norm_route", arrays, exact), plan


def _mixture_up(
    rng: np.random.Generator, form: str, formats: tuple[str, str], k: int, scales_input: bool
) -> tuple[Case, Plan]:
    """The choice in groups, with the gate of a shared expert, or the plain one of its other weights. Without
    `scales_input`, experts have scales, and the shared one rows of its own.
    """
    rows, experts, used, n, shared_n, gated = 2, 6, 2, 3, 5, int(not scales_input)
    groups, groups_used = (1, 1) if scales_input else (3, 2)
    x, logits = normal(rng, (rows, k)) / np.float32(np.sqrt(k)), normal(rng, (rows, experts + gated))
    of_choice, bias = normal(rng, (experts,)), normal(rng, (experts, 2 * n))
    stored, values = weight_of(rng, formats[0], (experts, 2 * n, k))
    shared, of_shared = weight_of(rng, formats[1], (2 * shared_n, k))
    ids, weights = chosen(logits[:, :experts], of_choice, used, groups, groups_used, gated)
    wide, share = x.astype(np.float64), weights[..., None] if scales_input else 1.0
    scales, own = normal(rng, (experts,)), normal(rng, (rows, k)) / np.float32(np.sqrt(k))
    both = np.einsum("rk,runk->run", wide, values[ids]) * share + bias[ids]
    gate, up = np.split(both, 2, axis=-1)
    slots = (activated(gate, 1) * up).reshape(rows, -1)
    gate, up = np.split((own.astype(np.float64) if gated else wide) @ of_shared.T, 2, axis=-1)
    weights = weights * scales[ids] if gated else weights
    last = 1 / (1 + np.exp(-logits[:, experts:].astype(np.float64))) if gated else np.ones((rows, 1))
    arrays = {
        "x": np.concatenate([x, own]), "logits": logits, "selection_bias": of_choice, "weight": stored,
        "bias": bias, "shared": shared,
    } | ({"scales": scales} if gated else {})  # fmt: skip
    numbers = {
        "used": used, "groups": groups, "groups_used": groups_used, "group_best": 2, "sigmoid": gated,
        "normalize": 0, "scale": 1.0, "shared_gate": gated, "scales_input": int(scales_input),
        "activation": 1, "gated": 1,
        "shared_from": gated * x.size,
        "limit": 0.0, "alpha": 0.0,
    }  # fmt: skip
    exact = {
        "out": np.concatenate([slots, activated(gate, 1) * up], axis=-1), "ids": ids.astype(np.int32),
        "weights": np.concatenate([np.ones_like(weights) if scales_input else weights, last], axis=-1),
    }  # fmt: skip
    plan = mixture_launches.plan("mixture_up", arrays, exact, numbers, form, 1)
    return Case("mixture_up", arrays, exact, numbers), plan


def _mixture_alone(
    rng: np.random.Generator, form: str, formats: tuple[str, str], k: int
) -> tuple[Case, Plan]:
    """Experts without gates; the shared one has rows of its own, which are longer, in another array."""
    rows, experts, used, n, shared_n = 2, 6, 2, 3, 5
    x, y = (normal(rng, (rows, each)) / np.float32(np.sqrt(each)) for each in (k, 2 * k))
    logits, of_choice = normal(rng, (rows, experts)), normal(rng, (experts,))
    stored, values = weight_of(rng, formats[0], (experts, n, k))
    shared, of_shared = weight_of(rng, formats[1], (shared_n, 2 * k))
    ids, weights = chosen(logits, of_choice, used, 1, 1, 1)
    slots = np.einsum("rk,runk->run", x.astype(np.float64), values[ids]).reshape(rows, -1)
    both = np.concatenate([slots, y.astype(np.float64) @ of_shared.T], axis=-1)
    arrays = {
        "x": x, "y": y, "logits": logits, "selection_bias": of_choice, "weight": stored, "shared": shared,
    }  # fmt: skip
    numbers = {
        "used": used, "groups": 1, "groups_used": 1, "group_best": 2, "sigmoid": 1, "normalize": 0,
        "scale": 1.0, "shared_gate": 0, "scales_input": 0, "activation": 5, "gated": 0, "shared_from": 0,
        "limit": 0.0, "alpha": 0.0,
    }  # fmt: skip
    exact = {
        "out": np.maximum(both, 0) ** 2, "ids": ids.astype(np.int32),
        "weights": np.concatenate([weights, np.ones((rows, 1))], axis=-1),
    }  # fmt: skip
    plan = mixture_launches.plan("mixture_up", arrays, exact, numbers, form, 1)
    return Case("mixture_up", arrays, exact, numbers), plan


def _mixture_down(
    rng: np.random.Generator, form: str, formats: tuple[str, str], n: int, apart: bool
) -> tuple[Case, Plan]:
    """`apart`: the shared expert has rows of its own, which are longer."""
    rows, experts, used, width = 2, 3, 2, 5
    shared_width = width + 3 if apart else width
    x, weights = normal(rng, (rows, used * n + 2 * n)), normal(rng, (rows, used + 1))
    ids, bias = np.array([[2, 0], [1, 1]], np.int32), normal(rng, (experts, width))
    stored, values = weight_of(rng, formats[0], (experts, width, n))
    shared, of_shared = weight_of(rng, formats[1], (shared_width, 2 * n))
    wide = x.astype(np.float64)
    slots = np.einsum("run,ruwn->ruw", wide[:, : used * n].reshape(rows, used, n), values[ids]) + bias[ids]
    exact = (slots * weights[:, :used, None]).sum(axis=1)
    of_last = wide[:, used * n :] @ of_shared.T * weights[:, used:]
    exact = np.concatenate([exact.ravel(), of_last.ravel()]) if apart else exact + of_last
    arrays = {"x": x, "ids": ids, "weights": weights, "weight": stored, "bias": bias, "shared": shared}
    plan = mixture_launches.plan(
        "mixture_down", arrays, {"out": At(exact)}, {"shared_to": apart * rows * width}, form, 1
    )
    return Case("mixture_down", arrays, {"out": exact}), plan


def _linear_beside(
    rng: np.random.Generator,
    form: str,
    formats: tuple[str, ...],
    k: int,
    activation: int,
    second: str,
    normed: bool,
) -> tuple[Case, Plan]:
    """Odd numbers of rows of all matrices, with a bias; gated, as many. Without the second, factors or ones
    are gated, and both formats are the first; "paired", it is in the first, and the gate has a factor. With
    `normed`, the row is the norm of a sum, and without an activation, some products have factors.
    """
    x = normal(rng, (1, k)) / np.float32(np.sqrt(k))
    sizes = (5, 5) if activation else (5, 3, 7)[: len(formats)]
    pairs = [weight_of(rng, name, (n, k)) for name, n in zip(formats, sizes, strict=True)]
    given, outs, numbers, row = _row(rng, x) if normed else ({"x": x}, {}, {"eps": 0, "factor": 1}, x)
    parts = [row.astype(np.float64) @ values.T for _, values in pairs]
    arrays = given | {"weight": pairs[0][0]}
    bias = normal(rng, (sum(sizes),))
    if not activation:
        arrays |= dict(zip(("shared", "up"), (stored for stored, _ in pairs[1:]), strict=False))
        arrays["bias"], exact = bias, np.concatenate(parts, -1) + bias
        if normed:
            arrays["factors"] = normal(rng, (4,))
            exact[:, 3:7] *= arrays["factors"]
    elif second in ("other", "paired"):
        exact = activated(parts[0], activation) * parts[1]
        if second == "paired":
            arrays["weight"], values = weight_of(rng, formats[0], (10, k))
            gate, up = np.split(row.astype(np.float64) @ values.T, 2, axis=-1)
            exact = activated(gate * 0.5, activation) * up
        else:
            arrays["shared"] = pairs[1][0]
    else:
        factors = normal(rng, (1, 5)) if second == "factors" else np.ones((1, 5))
        exact = activated(parts[0] + bias[:5], activation) * factors
        arrays |= {"bias": bias[:5]} | ({"factors": factors} if second == "factors" else {})
    numbers = {"activation": activation, "paired": int(second == "paired")} | numbers
    numbers |= {"gate_factor": 0.5 if second == "paired" else 1.0, "factors_from": 0 if activation else 3}
    places = {"out": At(exact)} | {name: At(each) for name, each in outs.items()}
    plan = mixture_launches.plan("linear_beside", arrays, places, numbers, form, 1)
    return Case("linear_beside", arrays, {"out": exact} | outs, numbers), plan


def _linear_sum(
    rng: np.random.Generator, form: str, formats: tuple[str, str], k: int, longer: bool
) -> tuple[Case, Plan]:
    """An odd number of columns; the second row may be longer."""
    n, lengths = 5, (k, 2 * k if longer else k)
    x, y = (normal(rng, (1, each)) / np.float32(np.sqrt(each)) for each in lengths)
    pairs = [weight_of(rng, name, (n, each)) for name, each in zip(formats, lengths, strict=True)]
    (weight, first), (other, second) = pairs
    exact = 0.5 * (x.astype(np.float64) @ first.T) - 1.5 * (y.astype(np.float64) @ second.T)
    arrays = {"x": x, "weight": weight, "y": y, "shared": other}
    numbers = {"factor": 0.5, "other_factor": -1.5}
    plan = mixture_launches.plan("linear_sum", arrays, {"out": At(exact)}, numbers, form, 1)
    return Case("linear_sum", arrays, {"out": exact}, numbers), plan


def _row(rng: np.random.Generator, x: np.ndarray) -> tuple[dict, dict, dict, np.ndarray]:
    """What a row is the norm of a sum of, with both; the numbers; and the row."""
    k = x.shape[1]
    post, norm = normal(rng, (k,)), normal(rng, (k,))
    residual, scale = normal(rng, (1, k)), np.full(1, 0.75, np.float32)
    wide, eps, factor = x.astype(np.float64), 0.5, 0.25

    def by(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean() + eps) * weight

    total = (residual + by(wide, post) * factor) * 0.75
    given = {"x": x, "post": post, "residual": residual, "scale": scale, "norm": norm}
    rows = np.concatenate([total, by(total, norm)])
    return given, {"rows": rows}, {"eps": eps, "factor": factor}, rows[1:]
