"""Small calls of the kernels of recurrent states, with their exact results in float64."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from kernel_cases import Case, normal

from airllm.backends.gpu import recurrent_launches
from airllm.backends.gpu.launches import Plan

_TOKENS, _WIDE = 3, 40  # columns of a head, which do not fill a work-group


def recurrent_cases(form: str) -> Iterator[tuple[str, Case, Plan]]:
    """The family of the kernels, the call, and its plan."""
    rng = np.random.default_rng(0)
    cases = [_convolve(rng, gated) for gated in (0, 1)]
    scans = ((0, False), (1, True), (0, False, True), (1, False, True, 1))
    cases += [_delta_scan(rng, *each) for each in scans]
    cases += [_state_scan(rng, convolved) for convolved in (False, True)]
    cases += [*(_gated_norm(rng, *each) for each in ((0, 0, 2), (1, 0, 1), (0, 1, 0)))]
    for case in cases:
        arrays = {name: each for name, each in case.arrays.items() if each is not None}
        yield "recurrent", case, recurrent_launches.plan(case.op, arrays, case.exact, case.parameters, form)


def _convolve(rng: np.random.Generator, gated: int) -> Case:
    """Rows of 4 more values, the first of which begins after 3."""
    channels, count = 37, 3
    wide = channels * (3 if gated else 1)
    x, taps, state = (
        normal(rng, (_TOKENS, wide + 4)),
        normal(rng, (channels, count)),
        normal(rng, (2, channels)),
    )
    bias = None if gated else normal(rng, (channels,))
    rows = x.astype(np.float64)[:, 3 : 3 + wide]
    first, second, given = np.split(rows, 3, axis=1) if gated else (1, 1, rows)
    inputs = np.concatenate([state, first * given])
    out = np.stack([(inputs[t : t + count] * taps.T).sum(axis=0) for t in range(_TOKENS)])
    out = out * second if bias is None else _silu(out + bias)
    numbers = {
        "tokens": _TOKENS, "channels": channels, "count": count, "x_from": 3, "x_step": wide + 4,
        "gated": gated, "activated": 1 - gated, "key_heads": 0, "key_dim": 0, "wide": 0,
    }  # fmt: skip
    arrays = {"x": x, "taps": taps, "bias": bias, "state": state}
    return Case("convolve", arrays, {"next_state": inputs[_TOKENS:], "out": out}, numbers)


class _Inputs(NamedTuple):
    """What a scan gets: `mixed`, as arrays and numbers, and what it leaves of it."""

    mixed: np.ndarray
    arrays: dict[str, Any]
    exact: dict[str, np.ndarray]
    numbers: dict[str, int]


def _given(rng: np.random.Generator, channels: int) -> _Inputs:
    """Rows that went through the convolution."""
    mixed = normal(rng, (_TOKENS, channels))
    return _Inputs(mixed, {"mixed": mixed}, {}, {"channels": 0, "count": 0})


def _convolved(rng: np.random.Generator, order: np.ndarray, rest: int = 0) -> _Inputs:
    """A row that is convolved first. `order`: where its channels are, among `rest` other values."""
    channels, count = len(order), 3
    x, taps = normal(rng, (1, channels + rest)), normal(rng, (channels, count))
    before, bias = normal(rng, (count - 1, channels)), normal(rng, (channels,))
    inputs = np.concatenate([before, x[:, order]]).astype(np.float64)
    mixed = _silu((inputs * taps.T).sum(axis=0) + bias)[None]
    arrays = {"mixed": x, "taps": taps, "bias": bias, "inputs": before}
    return _Inputs(mixed, arrays, {"next_inputs": inputs[1:]}, {"channels": channels, "count": count})


def _delta_scan(
    rng: np.random.Generator, tiled: int, goes_on: bool, convolved: bool = False, joined: int = 0
) -> Case:
    """`goes_on`: the rows of the first token are skipped. `convolved`: one token, with its convolution;
    `joined`: of a row that has queries, keys, values and gates by key head.
    """
    keys, heads, dim = 2, 4, 5
    channels, values = 2 * keys * dim + heads * _WIDE, heads * _WIDE
    by_key_head = np.arange(channels + values).reshape(keys, -1)
    parts = np.split(by_key_head, np.cumsum((dim, dim, values // keys)), axis=1)[:3]
    order = np.concatenate([each.ravel() for each in parts]) if joined else np.arange(channels)
    given = _convolved(rng, order, values * joined) if convolved else _given(rng, channels)
    mixed, tokens = given.mixed, len(given.mixed)
    rates, steps = normal(rng, (tokens, heads)), normal(rng, (tokens, heads + 1))
    decay, bias = -np.abs(normal(rng, (heads,))), normal(rng, (heads,))
    first = normal(rng, (heads, dim, _WIDE))
    q, k = (mixed[:, at : at + 10].reshape(-1, keys, dim).astype(np.float64) for at in (0, 10))
    q, k = (each / np.sqrt((each**2).sum(axis=-1, keepdims=True) + 1e-6) for each in (q, k))
    state, out = first.astype(np.float64), np.zeros((tokens - goes_on, heads * _WIDE))
    for t in range(int(goes_on), tokens):
        for head in range(heads):
            of, some = head % keys if tiled else head // 2, slice(head * _WIDE, (head + 1) * _WIDE)
            state[head] *= np.exp(decay[head] * _softplus(steps[t, 1 + head] + bias[head]))
            missed = mixed[t, 20:][some] - k[t, of] @ state[head]
            state[head] += np.outer(k[t, of], missed / (1 + np.exp(-np.float64(rates[t, head]))))
            out[t - goes_on, some] = q[t, of] @ state[head] / np.sqrt(dim)
    numbers = given.numbers | {
        "tokens": tokens - goes_on, "joined": joined, "key_heads": keys, "value_heads": heads, "key_dim": dim,
        "value_dim": _WIDE, "tiled": tiled, "out_from": 0,
        **_rows("mixed", given.arrays["mixed"], goes_on), **_rows("rates", rates, goes_on),
        **_rows("steps", steps, goes_on, 1),
    }  # fmt: skip
    arrays = given.arrays | {
        "rates": rates, "steps": steps, "vectors": np.stack([decay, bias]), "state": first,
    }  # fmt: skip
    return Case("delta_scan", arrays, given.exact | {"next_state": state, "out": out}, numbers)


def _state_scan(rng: np.random.Generator, convolved: bool) -> Case:
    heads, groups, dim = 4, 2, 5
    values, vectors = heads * _WIDE, groups * dim
    order = np.arange(values + 2 * vectors)
    given = _convolved(rng, order) if convolved else _given(rng, len(order))
    mixed, tokens = given.mixed, len(given.mixed)
    steps = normal(rng, (tokens, heads))
    decay, bias, skip = -np.abs(normal(rng, (heads,))), normal(rng, (heads,)), normal(rng, (heads,))
    first = normal(rng, (heads, dim, _WIDE))
    state, out = first.astype(np.float64), np.zeros((tokens, values))
    for t in range(tokens):
        for head in range(heads):
            some, step = slice(head * _WIDE, (head + 1) * _WIDE), _softplus(steps[t, head] + bias[head])
            writes, reads = np.split(
                mixed[t, values:].reshape(2, groups, dim)[:, head // 2].astype(np.float64), 2
            )
            v = mixed[t, some].astype(np.float64)
            state[head] = state[head] * np.exp(decay[head] * step) + np.outer(writes, v * step)
            out[t, some] = reads @ state[head] + skip[head] * v
    numbers = given.numbers | {
        "tokens": tokens, "heads": heads, "groups": groups, "head_dim": _WIDE, "state_dim": dim,
        "out_from": 0, **_rows("mixed", given.arrays["mixed"]), **_rows("steps", steps),
    }  # fmt: skip
    arrays = given.arrays | {"steps": steps, "vectors": np.stack([decay, bias, skip]), "state": first}
    return Case("state_scan", arrays, given.exact | {"next_state": state, "out": out}, numbers)


def _gated_norm(rng: np.random.Generator, norm_first: int, by_sigmoid: int, weights: int) -> Case:
    """With weights for each of two parts of a row, for both, or without a norm."""
    rows, groups, dim, eps = 3, 2, 37, 0.25
    x, gate = normal(rng, (rows, groups, dim)), normal(rng, (rows, groups * dim + 5))
    weight = normal(rng, (weights, dim)) if weights else None
    own = gate[:, 2 : 2 + groups * dim].reshape(x.shape).astype(np.float64)
    opened = 1 / (1 + np.exp(-own)) if by_sigmoid else _silu(own)
    out = x * opened
    if weight is not None:
        of = x.astype(np.float64) if norm_first else out
        out = out / np.sqrt((of**2).mean(axis=-1, keepdims=True) + eps) * weight
    numbers = {
        "rows": rows, "groups": groups, "dim": dim, "x_from": 0, "gate_from": 2,
        "gate_step": groups * dim + 5, "gate_group": dim, "gate_each": 1,
        "weight_step": dim if weights > 1 else 0, "eps": eps, "by_sigmoid": by_sigmoid,
        "norm_first": norm_first,
    }  # fmt: skip
    return Case("gated_norm", {"x": x, "gate": gate, "weight": weight}, {"out": out}, numbers)


def _rows(name: str, array: np.ndarray, first: int = 0, column: int = 0) -> dict[str, Any]:
    """Where the rows from `first` on begin."""
    step = array.shape[1]
    return {f"{name}_from": int(first) * step + column, f"{name}_step": step}


def _softplus(x: Any) -> Any:
    return np.logaddexp(0, np.float64(x))


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))
