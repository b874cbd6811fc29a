"""Detect what this machine has, build its backends, check them, and time them on a real model's numbers.

    python detect_and_benchmark.py            # everything: some minutes
    python detect_and_benchmark.py --quick    # a minute
    python detect_and_benchmark.py --tune     # also what `airllm tune` does

Ends with tables on the terminal and, in benchmark_report/, the same as JSON and as one HTML page with plots.
The exit status is 1 if a build or a check fails or a forced backend cannot run, 2 if an option or the
configuration says something that it may not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

ROOT = Path(__file__).resolve().parent
NEEDED = ("numpy", "ml_dtypes", "rich", "matplotlib")


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
    with tuning.ignored():  # what was measured before has no say in what is measured now
        result = run(console, options, asked)
        if options.tune and path:
            console.rule("Tune", align="left")
            names = benchmark.running(result["backends"])
            result["choice"] = tuned(console, options, asked["ops"], names, path)
    json_path = options.json or options.output / "report.json"
    html_path = options.html or options.output / "report.html"
    report.write_json(result, json_path)
    page.write(result, html_path)
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
    parser.add_argument("--quick", action="store_true", help="short timings of float32: done in a minute")
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
    console.rule("1/4  Detect", align="left")
    capabilities = detected()
    console.print(capabilities, markup=False, soft_wrap=True)
    console.rule("2/4  Build", align="left")
    result: dict[str, Any] = {
        "format": 1,
        "started": started,
        "command": " ".join(["python", *map(str, sys.argv)]),
    }
    result |= {"capabilities": capabilities, "builds": [] if options.no_build else built(console)}
    console.print(report.builds_table(result) if result["builds"] else "Not asked for (--no-build).")
    try:
        backends.reload_backend()
    except ImportError as error:  # a forced backend that, the builds done, still cannot run
        sys.exit(f"detect_and_benchmark.py: {error}")
    with measure.threads(options.threads or usable_cores()) as threads:
        result["threads"] = threads
        measured(console, options, asked, result)
    result["seconds"] = round(time.monotonic() - clock, 1)
    return result


def measured(
    console: Console, options: argparse.Namespace, asked: dict[str, Any], result: dict[str, Any]
) -> None:
    """Steps 3 and 4, into `result`."""
    from airllm import benchmark, measure, report

    console.rule("3/4  Check", align="left")
    data = input_data(console, options)
    result["backends"] = benchmark.described(asked["backends"])
    console.print(report.backends_table(result))
    names = benchmark.running(result["backends"])
    with progress(console, "Checking") as advance:
        result["tests"] = benchmark.check(names, asked["ops"], asked["dtypes"], data, advance)
    console.print(report.tests_table(result))
    console.rule("4/4  Benchmark", align="left")
    result |= {"machine": measure.machine(), "bandwidth": vars(measure.bandwidth())}
    result["data"] = {"real": data.real, "source": data.source, "why_not": data.why_not}
    console.print(report.machine_table(result))
    timed = ["float32"] if options.quick and not options.dtypes else asked["dtypes"]
    limits = benchmark.QUICK if options.quick else benchmark.Limits()
    with progress(console, "Timing") as advance:
        result["speed"] = benchmark.speed(names, asked["ops"], timed, asked["sizes"], data, limits, advance)
    console.print(
        "\nThe rates and ratios are the fastest backend's; copy: share of the memory's copy bandwidth."
    )
    for table in report.speed_tables(result):
        report.show(console, table)


def tuned(
    console: Console, options: argparse.Namespace, ops: list[str], names: list[str], path: Path
) -> dict[str, Any]:
    """Measure where each backend starts to win and write it down, as `airllm tune` does."""
    from airllm import tune

    plan = tune.QUICK if options.quick else tune.FULL
    with progress(console, "Measuring") as advance:
        ops = [op for op in ops if op in tune.tunable()]
        found = tune.tune(ops, names, plan, path, lambda done, total: advance(done, total, ""))
    choice = tune.chosen_by(found)
    console.print("\n".join(tune.lines(choice)), markup=False, soft_wrap=True)
    console.print(f"Written to {path}; plots: {tune.draw(choice, path)}", soft_wrap=True)
    return choice


# ------------------------------------------------------------------------------------------------ steps


def detected() -> str:
    """What `setup.py test_capabilities` finds."""
    found = setup("test_capabilities")
    return found.stdout.strip() or found.stderr.strip()


def built(console: Console) -> list[dict[str, str]]:
    """Build every backend whose tools are there; a missing tool is a reason, a failed build a failure."""
    return [
        build(console, *each)
        for each in (("cpp", "build_ext", "--inplace"), ("cuda", "build_cuda"), ("opencl", "build_opencl"))
    ]


def build(console: Console, name: str, *command: str) -> dict[str, str]:
    """Run one setup.py command; its log is shown if it fails."""
    if why := missing_for(name):
        return {"name": name, "state": "skipped", "detail": why}
    spoken, before, start = f"python setup.py {' '.join(command)}", newest(name), time.monotonic()
    with console.status(spoken) if console.is_terminal else contextlib.nullcontext():
        done = setup(*command)
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


def setup(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a setup.py command as a user would, with its output kept."""
    return subprocess.run(
        [sys.executable, "setup.py", *command], cwd=ROOT, capture_output=True, text=True, errors="replace"
    )


def input_data(console: Console, options: argparse.Namespace) -> Any:
    """The real model's numbers, or random ones with a notice that cannot be missed."""
    from airllm import real_data

    if options.no_real_data:
        data = real_data.random_data("--no-real-data was given")
    else:
        with progress(console, "Fetching the real model's numbers") as advance:
            data = real_data.load_or_random(on_progress=lambda done, total: advance(done, total, ""))
    if data.real:
        console.print(f"Input: {data.source}")
    else:
        console.print(
            f"NOT REAL INPUT: {data.source}, because: {data.why_not}", style="bold yellow", soft_wrap=True
        )
    return data


@contextlib.contextmanager
def progress(console: Console, what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal; elsewhere one line that says what has begun."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    if not console.is_terminal:
        console.print(f"{what} ...")
        yield lambda done, total, text: None
        return
    columns = (TextColumn("{task.description:<36}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, text: bar.update(
            task, completed=done, total=total, description=text or what
        )


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
