"""Check the backends, time them, and tune `auto`: the steps of `detect_and_benchmark.py` after the builds."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airllm.bench import activations, machine_load, measure, model_benchmark, op_benchmark, report, tune
from airllm.engine.devices import backend_choice
from airllm.files import smollm2
from airllm.progress import step

if TYPE_CHECKING:
    from rich.console import Console

# Seconds of a quick run, which promises a minute. QUICK covers everything but the builds and the page. The
# download and the checks take at most their share of it; the timings get at least theirs.
QUICK, QUICK_FETCH, QUICK_CHECKS, QUICK_TIMINGS = 40.0, 20.0, 12.0, 3.0
QUICK_MODEL, QUICK_ROUNDS = 8.0, 3  # of the model: seconds after which no round begins, and the most rounds
FETCH, TIMINGS = 300.0, 480.0  # seconds of a run that is not quick


@dataclass(frozen=True)
class Choice:
    """The ops, dtypes, sizes and backends to check and time. Without `sizes`, each op has its own."""

    ops: list[str]
    dtypes: list[str]
    backends: list[str]
    sizes: list[tuple[int, int]] | None = None

    @classmethod
    def parse(cls, ops: str | None, dtypes: str | None, sizes: str | None, backends: str | None) -> Choice:
        """Parse comma-separated lists, or None for all. Raises WrongName for an unknown name."""
        return cls(
            op_benchmark.choose_names("op", ops, op_benchmark.OPS),
            op_benchmark.choose_names("dtype", dtypes, op_benchmark.DTYPES),
            op_benchmark.choose_backends(backends),
            op_benchmark.choose_sizes(sizes) if sizes else None,
        )


@dataclass
class Run:
    """A run on a console. Each step adds its results to `result`, which the report shows."""

    console: Console
    choice: Choice
    quick: bool
    threads: int
    real_data: bool
    budget: measure.Budget
    result: dict[str, Any] = field(default_factory=dict)

    def check_backends(self) -> activations.Data:
        """Check the kernels against their definitions; return the input data for `time_ops`."""
        self.console.rule("3/4  Check", align="left")
        data = self.load_data()
        self.result["data"] = {"real": data.real, "source": data.source, "why_not": data.why_not}
        self.result["backends"] = op_benchmark.describe_backends(self.choice.backends)
        self.console.print(report.backends_table(self.result))
        what = self.running(), self.choice.ops, self.choice.dtypes
        seconds = min(QUICK_CHECKS, self.budget.left() / 2) if self.quick else math.inf
        with step(self.console, "Checking") as on_progress:
            tests = op_benchmark.check(*what, data, on_progress, seconds)
        self.result["tests"] = tests
        self.result["checks_left_out"] = len(op_benchmark.cases_to_check(*what)) - len(tests)
        self.console.print(report.tests_table(self.result))
        return data

    def time_ops(self, data: activations.Data) -> None:
        """Time the model, then every op."""
        self.console.rule("4/4  Benchmark", align="left")
        if warning := machine_load.busy_now():
            self.console.print(f"Warning: {warning}", style="bold yellow", markup=False, soft_wrap=True)
        others = machine_load.OtherPrograms()
        self.result["model"] = self.time_model()
        self.console.print(report.model_table(self.result))
        # New memory is slow where a host gives it to a virtual machine: 1.5 GB took 22 s.
        bandwidth = (
            measure.bandwidth(measure.large_array_bytes(caches=1.25), seconds=0.1)
            if self.quick
            else measure.bandwidth()
        )
        self.result |= {"machine": measure.machine(), "bandwidth": vars(bandwidth)}
        self.console.print(report.machine_table(self.result))
        with step(self.console, "Timing") as on_progress:
            what = self.running(), self.choice.ops, self.choice.dtypes, self.choice.sizes
            self.result["speed"] = op_benchmark.speed(*what, data, self.limits(), on_progress)
        cores = others.cores()
        self.result["others"] = {"cores": round(cores, 2), "busy": machine_load.busy(cores)}
        self.show_speed()

    def limits(self) -> op_benchmark.Limits:
        """The limits for timing ops."""
        if self.quick:
            return replace(op_benchmark.QUICK, total=max(self.budget.left(), QUICK_TIMINGS))
        return replace(op_benchmark.Limits(), total=TIMINGS)

    def show_speed(self) -> None:
        self.console.print(
            f"\n{report.rounds(self.result)} The rates and ratios are the fastest backend's; copy: share of "
            "the memory's copy bandwidth."
        )
        for table in report.speed_tables(self.result):
            report.show(self.console, table)

    def time_model(self) -> dict[str, Any]:
        """Time the real model on the backends that `auto` may choose and that passed their checks."""
        found: dict[str, Any] = {"name": "SmolLM2-135M-Instruct, Q4_1", "rows": [], "why_not": ""}
        if why_not := self.result["data"]["why_not"]:
            return found | {"why_not": why_not}
        names = self.right_backends()
        if not names:
            return found | {
                "why_not": "no backend that was asked for runs here by default and passed its checks"
            }
        limits: dict[str, Any] = {}
        if self.quick:
            limits = {"rounds": QUICK_ROUNDS, "within": min(QUICK_MODEL, self.budget.left() / 2)}
        try:
            with step(self.console, "Timing the model") as on_progress:
                path = smollm2.fetch(QUICK_FETCH if self.quick else FETCH)
                found["rows"] = model_benchmark.measure_model(
                    path, names, self.threads, on_progress, **limits
                )
        except smollm2.Unavailable as error:
            found["why_not"] = str(error)
        return found

    def right_backends(self) -> list[str]:
        """The backends that `auto` may choose, the active one first, without those that failed a check."""
        wrong = {test["backend"] for test in self.result["tests"] if not test["passed"]}
        states = {
            each["name"]: each["state"] for each in self.result["backends"] if each["name"] not in wrong
        }
        return [name for state in ("active", "available") for name in states if states[name] == state]

    def running(self) -> list[str]:
        return op_benchmark.running_names(self.result["backends"])

    def load_data(self) -> activations.Data:
        """The real model's values, or random ones with a prominent notice."""
        if not self.real_data:
            data = activations.random_data("--no-real-data was given")
        else:
            with step(self.console, "Fetching the real model's numbers") as on_progress:
                data = activations.load_or_random(
                    QUICK_FETCH if self.quick else FETCH, lambda done, total: on_progress(done, total, "")
                )
        if data.real:
            self.console.print(f"Input: {data.source}")
        else:
            self.console.print(
                f"NOT REAL INPUT: {data.source}, because: {data.why_not}", style="bold yellow", soft_wrap=True
            )
        return data

    def tune(self, path: Path) -> None:
        """Measure where each backend is fastest and write the tuning file, as `airllm tune` does."""
        self.console.rule("Tune", align="left")
        plan = tune.QUICK if self.quick else tune.FULL
        with step(self.console, "Measuring") as on_progress:
            ops = [op for op in self.choice.ops if op in tune.tunable()]
            found = tune.tune(
                ops, self.running(), plan, path, lambda done, total: on_progress(done, total, "")
            )
        backend_choice.forget()
        choice = self.result["choice"] = tune.choose_by(found)
        self.console.print("\n".join(tune.lines(choice)), markup=False, soft_wrap=True)
        self.console.print(f"Written to {path}; plots: {tune.draw(choice, path)}", soft_wrap=True)

    def say_headline(self) -> None:
        """Print the most important figures at the end of a long output, and the reasons to doubt them."""
        self.console.rule("In short", align="left")
        for figure, what in report.headline(self.result):
            self.console.print(f"{figure:>16}  {what}", markup=False, soft_wrap=True)
        for doubt in report.doubts(self.result):
            self.console.print(
                f"Figures to doubt: {doubt}", style="bold yellow", markup=False, soft_wrap=True
            )


def timestamp() -> str:
    """The local time with its time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z")
