"""build_opencl: compile every kernel for every OpenCL device of this machine, with the logs of failures.

It keeps no output: the backend compiles its kernels for the device in use. This command checks beforehand
that they compile. It fails if no device compiles all kernels, or if the named device (AIRLLM_OPENCL_DEVICE,
"opencl_device") does not. A broken device does not matter if another one works.
"""

import sys
from collections.abc import Iterator
from typing import Any

from airllm.backends.shipped.opencl import BACKEND

from . import CommandError, opencl_probes, probes

COMMAND = ("build_opencl",)
HELP = "compile every OpenCL kernel for every device here"


def add_options(parser) -> None:
    """This command has no options."""


def run(options) -> None:
    every = list(show_reports(reports()))
    broken = {report["label"] for report in every if not report["ok"]}
    wanted = {report["label"] for report in every if report["asked"]}
    in_question = wanted or {report["label"] for report in every}
    if in_question <= broken:
        logs = "\n".join(
            f"{report['device']}, {report['form']} kernels:\n{report['log']}"
            for report in every
            if report["label"] in in_question and not report["ok"]
        )
        what = "the device that was asked for" if wanted else "any device here"
        raise CommandError(f"the kernels do not compile for {what}\n{logs}")
    if broken:
        print(f"{len(broken)} of the above cannot be used; the others are ready.")


def tools() -> probes.Tools:
    """The OpenCL devices, with a line for each."""
    found = opencl_probes.devices()
    return probes.Tools((found,), "OpenCL", (str(found), *found.details))


def why_not_quick() -> str:
    """A quick run checks only the device in use."""
    return "--quick: compiled when it is checked below; python setup.py build_opencl tries every device"


def reports() -> Iterator[dict[str, Any]]:
    """The backend's report of each device; CommandError with the remedy if there is none."""
    if str(probes.CPP_EXT) not in sys.path:
        sys.path.insert(0, str(probes.CPP_EXT))
    try:
        from tensor_ops_opencl import build_report

        yield from build_report()
    except (ImportError, RuntimeError) as error:
        raise CommandError(f"{error}\n{BACKEND.how_to_get()}") from None
    except ValueError as error:  # an unknown device, or an invalid backend.json
        raise CommandError(str(error)) from None


def show_reports(reports: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Print a line for each report as it arrives, and yield the report."""
    for report in reports:
        state = "compiled" if report["ok"] else "FAILED"
        what = f"{len(report['kernels'])} kernels" if report["ok"] else "none"
        about = report["label"] if report["ok"] else f"{report['label']}: {report['reason']}"
        print(f"{state:<9} {report['form']:<4} {report['seconds']:5.1f} s  {what:<11}  {about}", flush=True)
        yield report
