"""Measures where each backend starts to win, for `airllm tune` and `detect_and_benchmark.py --tune`.

Ops are timed at some sizes on the backends that run here, on NumPy arrays: what a device costs in
copies is in its times. The backends take turns, as `airllm.bench.measure` says. The times go to tuning.json.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airllm.backends import registry, routing, tuning_file
from airllm.bench import measure
from airllm.bench.activations import SOURCES, Data
from airllm.bench.op_benchmark import DTYPES, WrongName, make_call
from airllm.bench.shapes import case_of, is_contraction
from airllm.ops.op import OPS, Op
from airllm.progress import OnProgress

ROUNDS = 3
LONGEST = 0.25  # seconds: a backend that is likely to take more for a call is left out at this size
HOPELESS = (
    8  # a backend that takes so many times the fastest's, and more than OVERHEAD, is left out from there on
)
OVERHEAD = 0.005  # seconds: what a call may take whatever its size
NOISE = 1 << 20  # random numbers, repeated until arrays are full


@dataclass(frozen=True)
class Plan:
    """What is measured: dtypes, sizes (rows, columns) of element-wise ops and of products, seconds a call."""

    dtypes: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    products: tuple[tuple[int, int], ...]
    seconds: float


FULL = Plan(
    tuple(DTYPES),
    ((1, 64), (1, 512), (1, 4096), (8, 4096), (64, 4096), (512, 4096), (2048, 4096)),
    ((1, 64), (1, 512), (1, 2048), (16, 512), (128, 64), (128, 512), (128, 2048)),
    0.015,
)
QUICK = Plan(
    ("float32",),
    ((1, 64), (1, 4096), (64, 4096), (1024, 4096)),
    ((1, 64), (1, 2048), (128, 64), (128, 1024)),
    0.01,
)


def tunable() -> list[str]:
    """The ops that calls can be routed of: those whose first array is NumPy's."""
    return [name for name, op in OPS.items() if op.operands[0].kind != "quantized"]


def tune(
    ops: Sequence[str],
    names: Sequence[str],
    plan: Plan,
    path: Path,
    on_progress: OnProgress,
) -> tuning_file.Tuning:
    """Measure these ops on these backends, and write the times to `path`; all that it holds then.

    WrongName if an op cannot be tuned; ConfigError if the file cannot be written.
    """
    if wrong := [name for name in ops if name not in tunable()]:
        raise WrongName(f"cannot tune {', '.join(wrong)}: its array is quantized, which is never routed")
    cases = [(OPS[op], dtype) for op in ops for dtype in plan.dtypes]
    total = sum(len(sizes_of(op, plan)) for op, _ in cases)
    found: dict[str, dict[str, tuple[tuning_file.Point, ...]]] = {}
    noise = np.random.default_rng(0).standard_normal(NOISE, np.float32)
    data = Data(
        "random numbers", "speed depends on none", dict.fromkeys({*SOURCES.values(), "hidden"}, noise)
    )
    done = 0
    for op, dtype in cases:
        points = []
        for point in measure_op(names, op, dtype, plan, data):
            on_progress(done := done + 1, total)
            points.append(point)
        found.setdefault(op.name, {})[dtype] = tuple(points)
    machine = tuning_file.this_machine({name: registry.open_backend(name).device for name in names})
    return tuning_file.write(path, machine, clock.strftime("%Y-%m-%d %H:%M %z"), found)


def sizes_of(op: Op, plan: Plan) -> list[tuple[int, int]]:
    """The sizes to measure an op at, those with little work first."""
    sizes = plan.products if is_contraction(op) else plan.sizes
    return sorted(sizes, key=lambda size: case_of(op, *size).steps(op))


def measure_op(
    names: Sequence[str], op: Op, dtype: str, plan: Plan, data: Data
) -> Iterable[tuning_file.Point]:
    """What each size takes on each backend, those left out whose time at a smaller one foretells too long, or
    that no larger one can win.
    """
    last: dict[str, tuple[float, int]] = {}  # seconds, steps
    hopeless: set[str] = set()
    required = [operand.name for operand in op.operands if not operand.optional]
    for rows, cols in sizes_of(op, plan):
        case = case_of(op, rows, cols)
        arrays, steps = data.inputs(op, rows, cols, DTYPES[dtype], np.random.default_rng(0)), case.steps(op)
        quick = [name for name in names if not is_too_long(*last.get(name, (0, 1)), steps)]
        quick = [name for name in quick if name not in hopeless]
        calls = {name: call for name in quick if (call := make_call(name, op, arrays, case.parameters))}
        if not calls:
            return
        times = time_twice(calls, plan.seconds)
        last |= {name: (time.median / 1e6, steps) for name, time in times.items()}
        limit = max(HOPELESS * min(time.median for time in times.values()), OVERHEAD * 1e6)
        hopeless |= {name for name, time in times.items() if time.median > limit}
        yield tuning_file.Point({n: tuple(a.shape) for n, a in zip(required, arrays, strict=True)}, times)


def time_twice(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, tuning_file.Time]:
    """Times of each; where the usual backend would lose, it and the faster ones are measured again, longer:
    what a busy moment has made of them would be the choice from then on.
    """
    times, usual = time_calls(calls, seconds), registry.best().name
    faster = [n for n in times if usual in times and routing.clearly_faster(times[n], times[usual])]
    again = {name: calls[name] for name in (usual, *faster)} if faster else {}
    return times | time_calls(again, 4 * seconds)


def time_calls(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, tuning_file.Time]:
    with np.errstate(all="ignore"):
        found = measure.compare(calls, seconds, ROUNDS)
    return {
        name: tuning_file.Time(*(1e6 * t for t in (f.median, f.low, f.high))) for name, f in found.items()
    }


def is_too_long(seconds: float, steps: int, next_steps: int) -> bool:
    """Whether a call is likely to take too long; what is short is mostly the same at any size."""
    return seconds > OVERHEAD and seconds * next_steps / steps > LONGEST


def choose_by(found: tuning_file.Tuning) -> dict[str, Any]:
    """What the automatic choice makes of a tuning, in plain values, for `airllm.bench.html_tuning`."""
    table = registry.automatic_table(found)
    return {
        "file": str(found.path),
        "measured": found.measured,
        "machine": {**vars(found.machine), "backends": dict(found.machine.backends)},
        "rows": table.rows(),
        "summary": [line for op in found.ops for line in table.summary(op)],
        "usual": table.usual.name,
    }


def lines(choice: dict[str, Any]) -> list[str]:
    """What runs where, in words."""
    summary = [f"  {line}" for line in choice["summary"]]
    return [f"{choice['usual']} runs every op{', but for:' if summary else ''}", *summary]


def draw(choice: dict[str, Any], path: Path) -> Path:
    """Write the page of plots beside the file; ModuleNotFoundError where matplotlib is not installed."""
    from airllm.bench import html_tuning

    page = path.with_suffix(".html")
    html_tuning.write(choice, page)
    return page
