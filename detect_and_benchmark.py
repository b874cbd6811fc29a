"""Detect what this machine has, build its backends, check them, and time them on a real model's numbers.

    python detect_and_benchmark.py            # everything: ten minutes, and what the builds take
    python detect_and_benchmark.py --quick    # less than a minute, once the C++ backend is built
    python detect_and_benchmark.py --tune     # also what `airllm tune` does

Ends with tables on the terminal and, in benchmark_report/, the same as JSON and as one HTML page with plots.
The exit status is 1 if a build or a check fails or a forced backend cannot run, 2 if an option or the
configuration says something that it may not.
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

from airllm.output import refuse_unwritable
from airllm.progress import step

if TYPE_CHECKING:
    from rich.console import Console

    from airllm import measure

ROOT = Path(__file__).resolve().parent
NEEDED = ("numpy", "ml_dtypes", "rich", "matplotlib")

# Seconds of --quick, which promises a minute: for all but the builds and the page, and of those at most for
# the download and for the checks, and for the timings at least, however slow the rest was.
QUICK, QUICK_FETCH, QUICK_CHECKS, QUICK_TIMINGS = 40.0, 20.0, 12.0, 3.0
TIMINGS = 480.0  # seconds, without --quick
BEGAN = time.monotonic()


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    require([*NEEDED, *(() if options.no_real_data else ("gguf",))])
    from airllm.backends import config

    try:
        config.load()  # the imports of `reported` would end in a traceback over a broken one
        return reported(options)
    except config.ConfigError as error:
        return refused(error)


def refused(error: Exception) -> int:
    """Say what is wrong with what the user asked for; returns the exit status."""
    print(f"detect_and_benchmark.py: {error}", file=sys.stderr)
    return 2


def reported(options: argparse.Namespace) -> int:
    """Run all and write the report; returns the exit status."""
    # With NumPy alone in use nothing is loaded that the build below is about to replace.
    with environment(AIRLLM_BACKEND="python"):
        from airllm import benchmark, page, report
        from airllm.backends import tuning
    try:
        asked = named(benchmark, options)
    except benchmark.WrongName as error:
        return refused(error)
    console = report.console()
    path = tuning.place()
    if options.tune and path is None:
        return refused(ValueError("AIRLLM_TUNING=off leaves --tune no file to write"))
    json_path = options.json or options.output / "report.json"
    html_path = options.html or options.output / "report.html"
    try:
        for each in (json_path, html_path, *([path] if options.tune and path else [])):
            refuse_unwritable(each)
    except OSError as error:
        return refused(error)
    with tuning.ignored():  # what was measured before has no say in what is measured now
        result = run(console, options, asked)
        if options.tune and path:
            console.rule("Tune", align="left")
            names = benchmark.running(result["backends"])
            result["choice"] = tuned(console, options, asked["ops"], names, path)
    try:
        report.write_json(result, json_path)
        with step(console, "Drawing the plots", counted=False):
            page.write(result, html_path)
    except OSError as error:
        return refused(OSError(f"{error.filename}: the report cannot be written: {error.strerror}"))
    console.print(f"\nReport: {html_path}\nJSON:   {json_path}", soft_wrap=True)
    wrong = report.failures(result)
    for line in wrong:
        console.print(f"FAILED {line}", style="bold red", markup=False, soft_wrap=True)
    return 1 if wrong else 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="float32 alone, shorter timings: done in a minute"
    )
    parser.add_argument(
        "--tune", action="store_true", help="measure too where each backend starts to win, for auto to use"
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
    parser.add_argument("--no-build", action="store_true", help="take the backends as they are")
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
    """End with the command that installs what is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"detect_and_benchmark.py needs {', '.join(missing)}. Install everything it uses:\n"
            f'    python -m pip install -e ".[all]"\n'
            f"or only that:\n    python -m pip install {' '.join(missing)}"
        )


def named(benchmark: Any, options: argparse.Namespace) -> dict[str, Any]:
    """What the options choose, checked before anything long begins."""
    return {
        "ops": benchmark.chosen("op", options.ops, benchmark.OPS),
        "dtypes": benchmark.chosen("dtype", options.dtypes, benchmark.DTYPES),
        "sizes": benchmark.chosen_sizes(options.sizes) if options.sizes else None,
        "backends": benchmark.chosen_backends(options.backends),
    }


def run(console: Console, options: argparse.Namespace, asked: dict[str, Any]) -> dict[str, Any]:
    """The four steps; returns everything the report shows."""
    from airllm import backends, measure, report
    from airllm.backends.devices import usable_cores

    started, clock = time.strftime("%Y-%m-%d %H:%M:%S %z"), time.monotonic()
    budget = measure.Budget(QUICK - (time.monotonic() - BEGAN) if options.quick else math.inf)
    console.rule("1/4  Detect", align="left")
    capabilities = detected(console)
    console.print(capabilities, markup=False, soft_wrap=True)
    console.rule("2/4  Build", align="left")
    result: dict[str, Any] = {
        "format": 1,
        "started": started,
        "command": " ".join(["python", *map(str, sys.argv)]),
    }
    builds_began = time.monotonic()
    builds = [] if options.no_build else built(console, options.quick)
    budget.extend(time.monotonic() - builds_began)
    result |= {"capabilities": capabilities, "builds": builds}
    console.print(report.builds_table(result) if builds else "Not asked for (--no-build).")
    try:
        backends.reload_backend()
    except ImportError as error:  # a forced backend that, the builds done, still cannot run
        sys.exit(f"detect_and_benchmark.py: {error}")
    with measure.threads(options.threads or usable_cores()) as threads:
        result["threads"] = threads
        asked = asked | {"dtypes": ["float32"] if options.quick and not options.dtypes else asked["dtypes"]}
        checked(console, options, asked, result, budget)
        timed(console, options, asked, result, budget)
    result["seconds"] = round(time.monotonic() - clock, 1)
    return result


def checked(
    console: Console,
    options: argparse.Namespace,
    asked: dict[str, Any],
    result: dict[str, Any],
    budget: measure.Budget,
) -> None:
    """Step 3, into `result`; the input data goes into `asked`, for step 4."""
    from airllm import benchmark, report

    console.rule("3/4  Check", align="left")
    data = asked["data"] = input_data(console, options)
    result["data"] = {"real": data.real, "source": data.source, "why_not": data.why_not}
    result["backends"] = benchmark.described(asked["backends"])
    console.print(report.backends_table(result))
    what = benchmark.running(result["backends"]), asked["ops"], asked["dtypes"]
    seconds = min(QUICK_CHECKS, budget.left() / 2) if options.quick else math.inf
    with step(console, "Checking") as told:
        result["tests"] = benchmark.check(*what, data, told, seconds)
    result["checks_left_out"] = len(benchmark.cases_to_check(*what)) - len(result["tests"])
    console.print(report.tests_table(result))


def timed(
    console: Console,
    options: argparse.Namespace,
    asked: dict[str, Any],
    result: dict[str, Any],
    budget: measure.Budget,
) -> None:
    """Step 4, into `result`."""
    from airllm import benchmark, measure, report

    console.rule("4/4  Benchmark", align="left")
    bandwidth = measure.bandwidth(seconds=0.1) if options.quick else measure.bandwidth()
    result |= {"machine": measure.machine(), "bandwidth": vars(bandwidth)}
    console.print(report.machine_table(result))
    limits = benchmark.QUICK if options.quick else benchmark.Limits()
    limits = replace(limits, total=max(budget.left(), QUICK_TIMINGS) if options.quick else TIMINGS)
    names = benchmark.running(result["backends"])
    with step(console, "Timing") as told:
        result["speed"] = benchmark.speed(
            names, asked["ops"], asked["dtypes"], asked["sizes"], asked["data"], limits, told
        )
    console.print(
        f"\n{report.rounds(result)} The rates and ratios are the fastest backend's; copy: share of the "
        "memory's copy bandwidth."
    )
    for table in report.speed_tables(result):
        report.show(console, table)


def tuned(
    console: Console, options: argparse.Namespace, ops: list[str], names: list[str], path: Path
) -> dict[str, Any]:
    """Measure where each backend starts to win and write it down, as `airllm tune` does."""
    from airllm import tune

    plan = tune.QUICK if options.quick else tune.FULL
    with step(console, "Measuring") as told:
        ops = [op for op in ops if op in tune.tunable()]
        found = tune.tune(ops, names, plan, path, lambda done, total: told(done, total, ""))
    choice = tune.chosen_by(found)
    console.print("\n".join(tune.lines(choice)), markup=False, soft_wrap=True)
    console.print(f"Written to {path}; plots: {tune.draw(choice, path)}", soft_wrap=True)
    return choice


# ------------------------------------------------------------------------------------------------ steps


def detected(console: Console) -> str:
    """What `setup.py test_capabilities` finds."""
    with step(console, "Looking for compilers, toolkits and devices", counted=False) as told:
        found = setup("test_capabilities", told=told)
    return found.stdout.strip() or found.stderr.strip()


def built(console: Console, quick: bool) -> list[dict[str, str]]:
    """Build every backend whose tools are there; a missing tool is a reason, a failed build a failure.

    `quick` leaves out what takes longest and is of no use here now.
    """
    commands = (("cpp", "build_ext", "--inplace"), ("cuda", "build_cuda"), ("opencl", "build_opencl"))
    return [build(console, *each, left_out=left_out(each[0]) if quick else "") for each in commands]


def left_out(name: str) -> str:
    """Why --quick does not build a backend; "" if it does."""
    from cpp_ext.commands import cuda_probes

    if name == "opencl":
        return "--quick: compiled when it is checked below; python setup.py build_opencl tries every device"
    if name == "cuda" and not cuda_probes.driver():
        return "--quick: compiling takes minutes, and there is no NVIDIA driver to run it with here"
    return ""


def build(console: Console, name: str, *command: str, left_out: str = "") -> dict[str, str]:
    """Run one setup.py command; its log is shown if it fails."""
    if why := missing_for(name) or left_out:
        return {"name": name, "state": "skipped", "detail": why}
    spoken, before, start = f"python setup.py {' '.join(command)}", newest(name), time.monotonic()
    with step(console, spoken, counted=False) as told:
        done = setup(*command, told=told)
    if done.returncode:
        log = (done.stdout + done.stderr).strip() or f"{spoken}: exit status {done.returncode}"
        console.print(log, markup=False, soft_wrap=True)
        return {"name": name, "state": "failed", "detail": log.splitlines()[-1]}
    changed = "built" if newest(name) > before else "up to date"
    state = "checked" if name == "opencl" else changed
    return {"name": name, "state": state, "detail": f"{spoken}, {time.monotonic() - start:.1f} s"}


def newest(name: str) -> int:
    """When a backend's module was last written; a build that finds it up to date leaves it alone."""
    return max(
        (path.stat().st_mtime_ns for path in (ROOT / "cpp_ext").glob(f"tensor_ops_{name}.*")), default=0
    )


def missing_for(name: str) -> str:
    """Why a backend cannot be built here, with the remedy; "" if it can."""
    from cpp_ext.commands import cuda_probes, probes

    needed = [probes.opencl()] if name == "opencl" else probes.cpp_prerequisites()
    if name == "cuda":
        needed.append(cuda_probes.nvcc())
    return "; ".join(str(finding) for finding in needed if not finding)


def setup(*command: str, told: Callable[[int, int, str], None]) -> subprocess.CompletedProcess[str]:
    """Run a setup.py command as a user would, with its output kept."""
    call, start = [sys.executable, "setup.py", *command], time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(call, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, errors="replace") as process:
        while True:
            try:
                output, log = process.communicate(timeout=1)
                return subprocess.CompletedProcess(call, process.returncode, output, log)
            except subprocess.TimeoutExpired:
                told(0, 0, f"{' '.join(command)}: {time.monotonic() - start:.0f} s")
            except BaseException:
                process.kill()
                raise


def input_data(console: Console, options: argparse.Namespace) -> Any:
    """The real model's numbers, or random ones with a notice that cannot be missed."""
    from airllm import real_data

    if options.no_real_data:
        data = real_data.random_data("--no-real-data was given")
    else:
        timeout = QUICK_FETCH if options.quick else 300
        with step(console, "Fetching the real model's numbers") as told:
            data = real_data.load_or_random(timeout, lambda done, total: told(done, total, ""))
    if data.real:
        console.print(f"Input: {data.source}")
    else:
        console.print(
            f"NOT REAL INPUT: {data.source}, because: {data.why_not}", style="bold yellow", soft_wrap=True
        )
    return data


@contextlib.contextmanager
def environment(**settings: str) -> Iterator[None]:
    """These environment variables, for a while."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


if __name__ == "__main__":
    sys.exit(main())
