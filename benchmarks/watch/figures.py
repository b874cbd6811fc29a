"""Reads the figures of a benchmark's .json: what was measured, and what each side took, part by part.

A part is a pass or a round, in which the sides took turns. Costs are seconds, or seconds for a token, so less
is better. A pass has many samples, and so quartiles; a round has one. Each reader takes a result as
`record.write` saves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple


class Cost(NamedTuple):
    """The median of a part's samples, and their quartiles."""

    median: float
    low: float
    high: float


Costs = dict[str, list[Cost]]  # of each side, one for each part
Result = dict[str, Any]
Reader = Callable[[Result], Iterator[tuple[str, Costs]]]

OURS = "airllm"


def passes(name: str, ours: str = "tensor_ops") -> Reader:
    """Of tables with the same rows in each pass, named as "{op} {rows}". A side is a dict with a median."""

    def read(result: Result) -> Iterator[tuple[str, Costs]]:
        for rows in zip(*map(list, map(_flat, result["passes"])), strict=True):
            costs = {side: [_cost(row[side]) for row in rows] for side in _timings(rows)}
            yield name.format(**{key: _text(value) for key, value in rows[0].items()}), _rename(costs, ours)

    return read


def products(result: Result) -> Iterator[tuple[str, Costs]]:
    """Of bench_products.py, whose sides are "8", "8 ggml" and "8 repacked" for 8 rows."""
    for rows in zip(*result["passes"], strict=True):
        first = rows[0]
        for count in (side for side in first if side.isdigit()):
            names = {count: OURS, f"{count} ggml": "ggml", f"{count} repacked": "repacked"}
            costs = {
                name: [_cost(row[side]) for row in rows] for side, name in names.items() if side in first
            }
            yield f"{first['format']} {first['k']}x{first['n']}, {count} rows", costs


def engines(name: str) -> Reader:
    """Of bench_engine.py and bench_models.py: rounds of tokens per second; `name` is the key of its name."""

    def read(result: Result) -> Iterator[tuple[str, Costs]]:
        for case in result["cases"]:
            for what in ("decode", "prefill"):
                costs = _costs_of_rates([each[what] for each in case["rounds"]])
                budget = costs.pop("budget", None)
                yield f"{case[name]} {what}", costs
                if budget:
                    yield f"{case[name]} {what}, budget", {OURS: budget, "in memory": costs[OURS]}

    return read


def batches(result: Result) -> Iterator[tuple[str, Costs]]:
    """Of bench_batches.py. Its peers are llama.cpp, and the engine with one sequence."""
    for case in result["cases"]:
        for count in case["rounds"][0]:
            rates = [each[count] | {"one sequence": each["1"][OURS]} for each in case["rounds"]]
            yield f"{case['model']}, {count} sequences", _costs_of_rates(rates)


def dispatch(result: Result) -> Iterator[tuple[str, Costs]]:
    """Of bench_dispatch.py, which has one pass."""
    for op, sides in result["times"].items():
        yield op, _rename({side: [_cost(timing)] for side, timing in sides.items()}, "tensor_ops")


def step(result: Result) -> Iterator[tuple[str, Costs]]:
    rates = [{side: each[side] for side in ("kernel", "engine", "ops")} for each in result["rounds"]]
    yield "a token", _rename(_costs_of_rates(rates), "kernel")


def drafts(result: Result) -> Iterator[tuple[str, Costs]]:
    for text, rounds in result["rounds"].items():
        rates = [{side: each[side] for side in ("with", "without")} for each in rounds]
        yield f"a text that {text}", _rename(_costs_of_rates(rates), "with")


def long(result: Result) -> Iterator[tuple[str, Costs]]:
    for case in result["cases"]:
        yield f"{case['cache']} {case['what']}", _costs(case["rounds"])


def scheduler(result: Result) -> Iterator[tuple[str, Costs]]:
    """Of bench_scheduler.py. Its peer is the scheduler: with one sequence, or without a known prefix."""
    rounds = result["rounds"]
    for count in (2, 4, 8, 16):
        rates = [
            {OURS: each[f"{count} sequences, tokens/s"], "one sequence": each["1 sequences, tokens/s"]}
            for each in rounds
        ]
        yield f"{count} sequences", _costs_of_rates(rates)
    known, computed = "1000 known tokens and 0, ms", "1000 tokens to the first, ms"
    first = [{OURS: each[known], "computed": each[computed]} for each in rounds]
    yield "first token of a known prefix", _costs(first)


def serve(result: Result) -> Iterator[tuple[str, Costs]]:
    """Of bench_serve.py: rates of clients, a wait and a first token in seconds."""
    for model in result["models"]:
        servers = model["rounds"]
        rounds = [dict(zip(servers, each, strict=True)) for each in zip(*servers.values(), strict=True)]
        for key, what in (("one", "1 client"), ("eight", "8 clients")):
            rates = [{side: figures[key] for side, figures in each.items()} for each in rounds]
            yield f"{model['model']}, {what}", _costs_of_rates(rates)
        for key, what in (("wait", "longest wait"), ("first", "first token")):
            waits = [{side: figures[key] for side, figures in each.items()} for each in rounds]
            yield f"{model['model']}, {what}", _costs(waits)


def _flat(rows: Any) -> Iterator[dict[str, Any]]:
    """The rows of a pass; some benchmarks have lists of lists."""
    for row in rows:
        yield from _flat(row) if isinstance(row, list) else (row,)


def _timings(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The sides that each part has."""
    return [
        side
        for side, value in rows[0].items()
        if isinstance(value, dict) and all(side in row for row in rows)
    ]


def _cost(timing: dict[str, float]) -> Cost:
    return Cost(timing["median"], timing["low"], timing["high"])


def _costs(rounds: Sequence[dict[str, float]]) -> Costs:
    return {side: [Cost(*3 * [each[side]]) for each in rounds] for side in rounds[0]}


def _costs_of_rates(rounds: Sequence[dict[str, float]]) -> Costs:
    return _costs([{side: 1 / rate for side, rate in each.items()} for each in rounds])


def _rename(costs: Costs, ours: str) -> Costs:
    return {OURS if side == ours else side: each for side, each in costs.items()}


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
