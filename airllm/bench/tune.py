"""Measure where each backend is fastest, for `airllm tune` and `detect_and_benchmark.py --tune`.

Times ops at several sizes on the backends that run here. The arrays are NumPy's, so a device's times include
its copies. The backends take turns (see `airllm.bench.measure`). Of devices that keep models, it measures
what launches, uploads and reading weights take. The results go to tuning.json.
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
from airllm.engine.devices.device_speed import measure_devices
from airllm.ops.op import OPS, Op
from airllm.progress import OnProgress

ROUNDS = 3
LONGEST = 0.25  # seconds: a backend whose call is predicted to take longer is skipped at this size
HOPELESS = (
    8  # a backend that takes this many times the fastest time, and more than OVERHEAD, is skipped from there
)
OVERHEAD = 0.005  # seconds: a shorter call may be overhead that does not depend on the size
NOISE = 1 << 20  # random numbers, repeated to fill arrays


@dataclass(frozen=True)
class Plan:
    """What to measure: dtypes, sizes (rows, columns) of element-wise ops and products, seconds per call."""

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
    """The ops whose calls can be routed: those whose first array is a NumPy array."""
    return [name for name, op in OPS.items() if op.operands[0].kind != "quantized"]


def tune(
    ops: Sequence[str],
    names: Sequence[str],
    plan: Plan,
    path: Path,
    on_progress: OnProgress,
) -> tuning_file.Tuning:
    """Measure these ops on these backends, write the times to `path`, and return its whole content.

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
    now = clock.strftime("%Y-%m-%d %H:%M %z")
    return tuning_file.write(path, machine, now, found, measure_devices(names))


def sizes_of(op: Op, plan: Plan) -> list[tuple[int, int]]:
    """The sizes at which to measure an op, least work first."""
    sizes = plan.products if is_contraction(op) else plan.sizes
    return sorted(sizes, key=lambda size: case_of(op, *size).steps(op))


def measure_op(
    names: Sequence[str], op: Op, dtype: str, plan: Plan, data: Data
) -> Iterable[tuning_file.Point]:
    """The times of each size on each backend. Skips a backend that is predicted to take too long, or is too
    slow to win at a larger size.
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
    """The time of each call. If the usual backend loses, it and the faster ones are measured again, longer,
    since a busy moment of the machine must not decide the choice.
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
    """Whether a call is predicted to take too long. A short time is mostly overhead, and not scaled."""
    return seconds > OVERHEAD and seconds * next_steps / steps > LONGEST


def choose_by(found: tuning_file.Tuning) -> dict[str, Any]:
    """The automatic choice by a tuning, as plain values, for `airllm.bench.html_tuning`."""
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
    """The backends and the sizes at which each runs, as text."""
    summary = [f"  {line}" for line in choice["summary"]]
    return [f"{choice['usual']} runs every op{', but for:' if summary else ''}", *summary]


def draw(choice: dict[str, Any], path: Path) -> Path:
    """Write the page of plots next to the file; ModuleNotFoundError if matplotlib is not installed."""
    from airllm.bench import html_tuning

    page = path.with_suffix(".html")
    html_tuning.write(choice, page)
    return page
