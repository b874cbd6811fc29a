"""Detect this machine's hardware, build its backends, check them, and time them on a real model's data.

    python detect_and_benchmark.py            # everything: ten minutes plus the builds
    python detect_and_benchmark.py --quick    # less than a minute, once the C++ backend is built
    python detect_and_benchmark.py --tune     # also runs `airllm tune`

Prints tables and writes the same results to benchmark_report/, as JSON and as one HTML page with plots. The
exit status is 1 if a build or a check fails or a forced backend cannot run, 2 if an option or the
configuration is invalid.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airllm.progress import step
from airllm.writable import refuse_unwritable

if TYPE_CHECKING:
    from rich.console import Console

    from airllm.bench import measure

ROOT = Path(__file__).resolve().parent
NEEDED = ("numpy", "ml_dtypes", "rich", "matplotlib")

# Seconds of --quick, which promises a minute: in all, without the builds and the page; at most for the
# download; at most for the checks; and at least for the timings.
QUICK, QUICK_FETCH, QUICK_CHECKS, QUICK_TIMINGS = 40.0, 20.0, 12.0, 3.0
QUICK_MODEL, QUICK_ROUNDS = 8.0, 3  # of the model: seconds after which no round begins, and the most rounds
TIMINGS = 480.0  # seconds, without --quick
BEGAN = time.monotonic()


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    require([*NEEDED, *(() if options.no_real_data else ("gguf",))])
    from airllm.backends import config

    try:
        config.load()  # with a broken one, the imports of `run_and_report` would raise a traceback
        return run_and_report(options)
    except config.ConfigError as error:
        return report_refusal(error)


def report_refusal(error: Exception) -> int:
    """Print why the user's request is invalid; return the exit status."""
    print(f"detect_and_benchmark.py: {error}", file=sys.stderr)
    return 2


def run_and_report(options: argparse.Namespace) -> int:
    """Run all steps and write the report; return the exit status."""
    from airllm.backends.config_schema import DEFINITIONS

    # With NumPy in use, no module is loaded that the build below replaces.
    with environment(AIRLLM_BACKEND=DEFINITIONS):
        from airllm.backends import tuning_file
        from airllm.bench import html_report, op_benchmark, report
    try:
        asked = choose_names(op_benchmark, options)
    except op_benchmark.WrongName as error:
        return report_refusal(error)
    console = report.console()
    path = tuning_file.tuning_file()
    if options.tune and path is None:
        return report_refusal(ValueError(f"{tuning_file.why_no_file()}: that leaves --tune no file to write"))
    json_path = options.json or options.output / "report.json"
    html_path = options.html or options.output / "report.html"
    try:
        for each in (json_path, html_path, *([path] if options.tune and path else [])):
            refuse_unwritable(each)
    except OSError as error:
        return report_refusal(error)
    with tuning_file.ignore_tuning():  # earlier times must not affect these
        result = run(console, options, asked)
        if options.tune and path:
            console.rule("Tune", align="left")
            names = op_benchmark.running_names(result["backends"])
            result["choice"] = tune_backends(console, options, asked["ops"], names, path)
    try:
        report.write_json(result, json_path)
        with step(console, "Drawing the plots", counted=False):
            html_report.write(result, html_path)
    except OSError as error:
        return report_refusal(OSError(f"{error.filename}: the report cannot be written: {error.strerror}"))
    say_headline(console, result)
    console.print(f"\nReport: {html_path}\nJSON:   {json_path}", soft_wrap=True)
    wrong = report.failures(result)
    for line in wrong:
        console.print(f"FAILED {line}", style="bold red", markup=False, soft_wrap=True)
    return 1 if wrong else 0


def say_headline(console: Console, result: dict[str, Any]) -> None:
    """Print the most important figures at the end of a long output, and the reasons to doubt them."""
    from airllm.bench import report

    console.rule("In short", align="left")
    for figure, what in report.headline(result):
        console.print(f"{figure:>16}  {what}", markup=False, soft_wrap=True)
    for doubt in report.doubts(result):
        console.print(f"Figures to doubt: {doubt}", style="bold yellow", markup=False, soft_wrap=True)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="float32 only, shorter timings: takes a minute")
    parser.add_argument(
        "--tune", action="store_true", help="also run `airllm tune`: auto then picks the fastest backend"
    )
    parser.add_argument("--ops", metavar="A,B", help="ops to check and time (default: all)")
    parser.add_argument("--sizes", metavar="RxC,...", help="rows x columns to time, such as 1x4096,128x4096")
    parser.add_argument(
        "--backends", metavar="A,B", help="backends to check and time (default: all that run here)"
    )
    parser.add_argument("--dtypes", metavar="A,B", help="of float32, float16, bfloat16 (default: all)")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads for every library (default: all cores)"
    )
    parser.add_argument("--no-build", action="store_true", help="do not build the backends")
    parser.add_argument(
        "--no-real-data", action="store_true", help="random numbers instead of a real model's"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("benchmark_report"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="instead of DIR/report.json")
    parser.add_argument("--html", type=Path, metavar="FILE", help="instead of DIR/report.html")
    options = parser.parse_args(arguments)
    if options.threads is not None and options.threads < 1:
        parser.exit(2, f"detect_and_benchmark.py: --threads has {options.threads}, expected 1 or more\n")
    return options


def require(modules: list[str]) -> None:
    """Exit with the command that installs what is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"detect_and_benchmark.py needs {', '.join(missing)}. Install everything it uses:\n"
            f'    python -m pip install -e ".[all]"\n'
            f"or only that:\n    python -m pip install {' '.join(missing)}"
        )


def choose_names(benchmark: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The selections of the options, checked before any long step."""
    return {
        "ops": benchmark.chosen("op", options.ops, benchmark.OPS),
        "dtypes": benchmark.chosen("dtype", options.dtypes, benchmark.DTYPES),
        "sizes": benchmark.chosen_sizes(options.sizes) if options.sizes else None,
        "backends": benchmark.chosen_backends(options.backends),
    }


def run(console: Console, options: argparse.Namespace, asked: dict[str, Any]) -> dict[str, Any]:
    """Run the four steps; return everything that the report shows."""
    from airllm import backends
    from airllm.backends.devices import usable_cores
    from airllm.bench import measure, report

    started, clock = time.strftime("%Y-%m-%d %H:%M:%S %z"), time.monotonic()
    budget = measure.Budget(QUICK - (time.monotonic() - BEGAN) if options.quick else math.inf)
    console.rule("1/4  Detect", align="left")
    capabilities = detect(console)
    console.print(capabilities, markup=False, soft_wrap=True)
    console.rule("2/4  Build", align="left")
    result: dict[str, Any] = {
        "format": 1,
        "started": started,
        "command": " ".join(["python", *map(str, sys.argv)]),
    }
    builds_began = time.monotonic()
    builds = [] if options.no_build else build_backends(console, options)
    budget.extend(time.monotonic() - builds_began)
    result |= {"capabilities": capabilities, "builds": builds}
    console.print(report.builds_table(result) if builds else "Not asked for (--no-build).")
    try:
        backends.reload_backend()
    except ImportError as error:  # a forced backend that cannot run even after the builds
        sys.exit(f"detect_and_benchmark.py: {error}")
    with measure.threads(options.threads or usable_cores()) as threads:
        result["threads"] = threads
        asked = asked | {"dtypes": ["float32"] if options.quick and not options.dtypes else asked["dtypes"]}
        check_backends(console, options, asked, result, budget)
        time_ops(console, options, asked, result, budget)
    result["seconds"] = round(time.monotonic() - clock, 1)
    return result


def check_backends(
    console: Console,
    options: argparse.Namespace,
    asked: dict[str, Any],
    result: dict[str, Any],
    budget: measure.Budget,
) -> None:
    """Step 3: adds to `result`, and puts the input data into `asked` for step 4."""
    from airllm.bench import op_benchmark, report

    console.rule("3/4  Check", align="left")
    data = asked["data"] = input_data(console, options)
    result["data"] = {"real": data.real, "source": data.source, "why_not": data.why_not}
    result["backends"] = op_benchmark.describe_backends(asked["backends"])
    console.print(report.backends_table(result))
    what = op_benchmark.running_names(result["backends"]), asked["ops"], asked["dtypes"]
    seconds = min(QUICK_CHECKS, budget.left() / 2) if options.quick else math.inf
    with step(console, "Checking") as on_progress:
        result["tests"] = op_benchmark.check(*what, data, on_progress, seconds)
    result["checks_left_out"] = len(op_benchmark.cases_to_check(*what)) - len(result["tests"])
    console.print(report.tests_table(result))


def time_ops(
    console: Console,
    options: argparse.Namespace,
    asked: dict[str, Any],
    result: dict[str, Any],
    budget: measure.Budget,
) -> None:
    """Step 4: adds to `result`, the model first."""
    from airllm.bench import (
        machine_load,
        measure,
        op_benchmark,
        report,
    )

    console.rule("4/4  Benchmark", align="left")
    if says := machine_load.busy_now():
        console.print(f"Warning: {says}", style="bold yellow", markup=False, soft_wrap=True)
    others = machine_load.OtherPrograms()
    result["model"] = time_model(console, options, result, budget)
    console.print(report.model_table(result))
    bandwidth = measure.bandwidth(seconds=0.1) if options.quick else measure.bandwidth()
    result |= {"machine": measure.machine(), "bandwidth": vars(bandwidth)}
    console.print(report.machine_table(result))
    limits = op_benchmark.QUICK if options.quick else op_benchmark.Limits()
    limits = replace(limits, total=max(budget.left(), QUICK_TIMINGS) if options.quick else TIMINGS)
    names = op_benchmark.running_names(result["backends"])
    with step(console, "Timing") as on_progress:
        result["speed"] = op_benchmark.speed(
            names, asked["ops"], asked["dtypes"], asked["sizes"], asked["data"], limits, on_progress
        )
    result["others"] = {"cores": round(taken := others.cores(), 2), "busy": machine_load.busy(taken)}
    console.print(
        f"\n{report.rounds(result)} The rates and ratios are the fastest backend's; copy: share of the "
        "memory's copy bandwidth."
    )
    for table in report.speed_tables(result):
        report.show(console, table)


def time_model(
    console: Console, options: argparse.Namespace, result: dict[str, Any], budget: measure.Budget
) -> dict[str, Any]:
    """Time the real model on the backends that `auto` may choose and that passed their checks."""
    from airllm.backends.devices import usable_cores
    from airllm.bench import model_benchmark
    from airllm.files import smollm2

    found: dict[str, Any] = {"name": "SmolLM2-135M-Instruct, Q4_1", "rows": [], "why_not": ""}
    if result["data"]["why_not"]:
        return found | {"why_not": result["data"]["why_not"]}
    wrong = {test["backend"] for test in result["tests"] if not test["passed"]}
    states = {each["name"]: each["state"] for each in result["backends"] if each["name"] not in wrong}
    names = [name for state in ("active", "available") for name in states if states[name] == state]
    if not names:
        return found | {"why_not": "no backend that was asked for runs here by default and passed its checks"}
    limits: dict[str, Any] = {}
    if options.quick:
        limits = {"rounds": QUICK_ROUNDS, "within": min(QUICK_MODEL, budget.left() / 2)}
    try:
        with step(console, "Timing the model") as on_progress:
            path = smollm2.fetch(QUICK_FETCH if options.quick else 300)
            threads = options.threads or usable_cores()
            found["rows"] = model_benchmark.measure_model(path, names, threads, on_progress, **limits)
    except smollm2.Unavailable as error:
        found["why_not"] = str(error)
    return found


def tune_backends(
    console: Console, options: argparse.Namespace, ops: list[str], names: list[str], path: Path
) -> dict[str, Any]:
    """Measure where each backend is fastest and write the tuning file, as `airllm tune` does."""
    from airllm.bench import tune
    from airllm.engine import backend_choice

    plan = tune.QUICK if options.quick else tune.FULL
    with step(console, "Measuring") as on_progress:
        ops = [op for op in ops if op in tune.tunable()]
        found = tune.tune(ops, names, plan, path, lambda done, total: on_progress(done, total, ""))
    backend_choice.forget()
    choice = tune.choose_by(found)
    console.print("\n".join(tune.lines(choice)), markup=False, soft_wrap=True)
    console.print(f"Written to {path}; plots: {tune.draw(choice, path)}", soft_wrap=True)
    return choice


# ------------------------------------------------------------------------------------------------ steps


def detect(console: Console) -> str:
    """The output of `setup.py test_capabilities`."""
    with step(console, "Looking for compilers, toolkits and devices", counted=False) as on_progress:
        found = setup("test_capabilities", on_progress=on_progress)
    return found.stdout.strip() or found.stderr.strip()


def build_backends(console: Console, options: argparse.Namespace) -> list[dict[str, str]]:
    """Build every backend whose tools are installed. A missing tool is a reason; a failed build is a failure.

    A failed check, of a command that builds nothing, is also a reason, unless its backend was named. --quick
    skips the slowest builds if their result cannot be used here.
    """
    from airllm.backends import config
    from cpp_ext.commands.recipes import recipes

    settings = config.load()
    named = {settings.force_backend, settings.preferred_backend, *(options.backends or "").split(",")}
    return [build(console, name, options.quick, name in named) for name in recipes()]


def build(console: Console, name: str, quick: bool = False, named: bool = True) -> dict[str, str]:
    """Run the setup.py command of a backend. If it fails, that is a failure, with its log; or a reason, if
    the command builds nothing and the backend was not `named`.
    """
    from airllm.backends import reasons
    from cpp_ext.commands.recipes import module_recipes, recipes

    command, makes = recipes()[name].COMMAND, name in module_recipes()
    if why := missing_for(name) or (why_left_out(name) if quick else ""):
        return {"name": name, "state": "skipped", "detail": why}
    spoken, before, start = f"python setup.py {' '.join(command)}", newest(name), time.monotonic()
    with step(console, spoken, counted=False) as on_progress:
        done = setup(*command, on_progress=on_progress)
    if done.returncode:
        log = (done.stdout + done.stderr).strip() or f"{spoken}: exit status {done.returncode}"
        why = reasons.error_line(log) or log.splitlines()[-1].strip()
        if not makes and not named:
            return {"name": name, "state": "unavailable", "detail": f"{why} ({spoken})"}
        console.print(log, markup=False, soft_wrap=True)
        return {"name": name, "state": "failed", "detail": why}
    changed = "built" if newest(name) > before else "up to date"
    state = changed if makes else "checked"
    return {"name": name, "state": state, "detail": f"{spoken}, {time.monotonic() - start:.1f} s"}


def why_left_out(name: str) -> str:
    """Why --quick does not build a backend; "" if it does."""
    from cpp_ext.commands.recipes import recipes

    return getattr(recipes()[name], "why_not_quick", str)()


def newest(name: str) -> int:
    """Modification time of a backend's module; a build does not touch one that is up to date."""
    from airllm.backends.declaration import shipped

    files = (ROOT / "cpp_ext").glob(f"{shipped()[name].module}.*")
    return max((path.stat().st_mtime_ns for path in files), default=0)


def missing_for(name: str) -> str:
    """Why a backend cannot be built here, with the remedy; "" if it can be."""
    from cpp_ext.commands.recipes import recipes

    return "; ".join(map(str, recipes()[name].tools().missing))


def setup(*command: str, on_progress: Callable[[int, int, str], None]) -> subprocess.CompletedProcess[str]:
    """Run a setup.py command as a user would, and capture its output."""
    call, start = [sys.executable, "setup.py", *command], time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(call, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, errors="replace") as process:
        while True:
            try:
                output, log = process.communicate(timeout=1)
                return subprocess.CompletedProcess(call, process.returncode, output, log)
            except subprocess.TimeoutExpired:
                on_progress(0, 0, f"{' '.join(command)}: {time.monotonic() - start:.0f} s")
            except BaseException:
                process.kill()
                raise


def input_data(console: Console, options: argparse.Namespace) -> Any:
    """The real model's values, or random ones with a prominent notice."""
    from airllm.bench import activations

    if options.no_real_data:
        data = activations.random_data("--no-real-data was given")
    else:
        timeout = QUICK_FETCH if options.quick else 300
        with step(console, "Fetching the real model's numbers") as on_progress:
            data = activations.load_or_random(timeout, lambda done, total: on_progress(done, total, ""))
    if data.real:
        console.print(f"Input: {data.source}")
    else:
        console.print(
            f"NOT REAL INPUT: {data.source}, because: {data.why_not}", style="bold yellow", soft_wrap=True
        )
    return data


@contextlib.contextmanager
def environment(**settings: str) -> Iterator[None]:
    """Set environment variables inside the block."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


if __name__ == "__main__":
    sys.exit(main())
