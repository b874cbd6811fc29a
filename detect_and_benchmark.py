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
import dataclasses
import importlib.util
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airllm.progress import step
from airllm.writable import refuse_unwritable

if TYPE_CHECKING:
    from airllm.bench.run import Run

NEEDED = ("numpy", "ml_dtypes", "rich", "matplotlib")
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
        from airllm.bench import html_report, op_benchmark, report, run
    try:
        choice = run.Choice.parse(options.ops, options.dtypes, options.sizes, options.backends)
        places = check_places(options)
    except op_benchmark.WrongName as error:
        return report_refusal(error)
    except (OSError, ValueError) as error:
        return report_refusal(error)
    json_path, html_path, tuning_path = places
    with tuning_file.ignore_tuning():  # earlier times must not affect these
        done = detect_build_and_time(options, choice)
        if tuning_path:
            done.tune(tuning_path)
    try:
        report.write_json(done.result, json_path)
        with step(done.console, "Drawing the plots", counted=False):
            html_report.write(done.result, html_path)
    except OSError as error:
        return report_refusal(OSError(f"{error.filename}: the report cannot be written: {error.strerror}"))
    done.say_headline()
    done.console.print(f"\nReport: {html_path}\nJSON:   {json_path}", soft_wrap=True)
    wrong = report.failures(done.result)
    for line in wrong:
        done.console.print(f"FAILED {line}", style="bold red", markup=False, soft_wrap=True)
    return 1 if wrong else 0


def check_places(options: argparse.Namespace) -> tuple[Path, Path, Path | None]:
    """The paths of the report, as JSON and as a page, and of --tune's file. OSError or ValueError if one
    cannot be written.
    """
    from airllm.backends import tuning_file

    tuning = tuning_file.tuning_file() if options.tune else None
    if options.tune and tuning is None:
        raise ValueError(f"{tuning_file.why_no_file()}: --tune has no file to write")
    json_path = options.json or options.output / "report.json"
    html_path = options.html or options.output / "report.html"
    for each in filter(None, (json_path, html_path, tuning)):
        refuse_unwritable(each)
    return json_path, html_path, tuning


def detect_build_and_time(options: argparse.Namespace, choice: Any) -> Run:
    """Run the four steps; the returned run has everything that the report shows."""
    from airllm import backends
    from airllm.backends.devices import usable_cores
    from airllm.bench import measure, report, run
    from cpp_ext.commands import build_all

    console, started, clock = report.console(), run.timestamp(), time.monotonic()
    budget = measure.Budget(run.QUICK - (time.monotonic() - BEGAN) if options.quick else math.inf)
    console.rule("1/4  Detect", align="left")
    capabilities = build_all.detect(console)
    console.print(capabilities, markup=False, soft_wrap=True)
    console.rule("2/4  Build", align="left")
    builds_began = time.monotonic()
    named = (options.backends or "").split(",")
    builds = [] if options.no_build else build_all.build_all(console, options.quick, named)
    budget.extend(time.monotonic() - builds_began)
    command = " ".join(["python", *map(str, sys.argv)])
    result = {"format": 1, "started": started, "command": command}
    result |= {"capabilities": capabilities, "builds": builds}
    console.print(report.builds_table(result) if builds else "Not asked for (--no-build).")
    try:
        backends.reload_backend()
    except ImportError as error:  # a forced backend that cannot run even after the builds
        sys.exit(f"detect_and_benchmark.py: {error}")
    if options.quick and not options.dtypes:
        choice = dataclasses.replace(choice, dtypes=["float32"])
    threads = options.threads or usable_cores()
    with measure.threads(threads) as result["threads"]:
        this = run.Run(console, choice, options.quick, threads, not options.no_real_data, budget, result)
        this.time_ops(this.check_backends())
    result["seconds"] = round(time.monotonic() - clock, 1)
    return this


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
