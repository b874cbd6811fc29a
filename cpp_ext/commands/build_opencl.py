"""build_opencl: compiles every kernel for every OpenCL device here, with the logs of failures.

There is nothing to keep: the backend compiles its text for the device it uses. This finds out beforehand
whether that will work.
"""

import sys
from collections.abc import Iterator
from typing import Any

from . import CommandError, probes

HELP = "compile every OpenCL kernel for every device here"


def add_options(parser) -> None:
    """There are none."""


def run(options) -> None:
    failures = [report for report in shown(reports()) if not report["ok"]]
    if failures:
        logs = "\n".join(
            f"{report['device']}, {report['form']} kernels:\n{report['log']}" for report in failures
        )
        raise CommandError(f"the kernels do not compile for {len(failures)} of the above\n{logs}")


def reports() -> Iterator[dict[str, Any]]:
    """What the backend says of each device; CommandError with the remedy if there is none."""
    if str(probes.CPP_EXT) not in sys.path:
        sys.path.insert(0, str(probes.CPP_EXT))
    try:
        from tensor_ops_opencl import build_report

        yield from build_report()
    except (ImportError, RuntimeError) as error:
        raise CommandError(f"{error}\n{probes.GET_OPENCL}") from None


def shown(reports: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Prints a line for each report as it comes, and hands it on."""
    for report in reports:
        state = "compiled" if report["ok"] else "FAILED"
        what = f"{len(report['kernels'])} kernels" if report["ok"] else "log below"
        device = f"{report['platform']}: {report['device']}"
        print(f"{state:<9} {report['form']:<4} {report['seconds']:5.1f} s  {what:<11}  {device}", flush=True)
        yield report
