"""build_opencl: compiles every kernel for every OpenCL device here, with the logs of failures.

There is nothing to keep: the backend compiles its text for the device it uses. This finds out beforehand
whether that will work. It fails where no device compiles them all, or not the one that was asked for by name
(AIRLLM_OPENCL_DEVICE, "opencl_device"): a broken one beside another that works keeps nobody from using that.
"""

import sys
from collections.abc import Iterator
from typing import Any

from airllm.backends.shipped.opencl import BACKEND

from . import CommandError, opencl_probes, probes

COMMAND = ("build_opencl",)
HELP = "compile every OpenCL kernel for every device here"


def add_options(parser) -> None:
    """There are none."""


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
    """Devices, with each of them."""
    found = opencl_probes.devices()
    return probes.Tools((found,), "OpenCL", (str(found), *found.details))


def why_not_quick() -> str:
    """A quick run checks the device in use, and no other."""
    return "--quick: compiled when it is checked below; python setup.py build_opencl tries every device"


def reports() -> Iterator[dict[str, Any]]:
    """What the backend says of each device; CommandError with the remedy if there is none."""
    if str(probes.CPP_EXT) not in sys.path:
        sys.path.insert(0, str(probes.CPP_EXT))
    try:
        from tensor_ops_opencl import build_report

        yield from build_report()
    except (ImportError, RuntimeError) as error:
        raise CommandError(f"{error}\n{BACKEND.how_to_get()}") from None
    except ValueError as error:  # a device that is not there, or a broken backend.json
        raise CommandError(str(error)) from None


def show_reports(reports: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Prints a line for each report as it comes, and hands it on."""
    for report in reports:
        state = "compiled" if report["ok"] else "FAILED"
        what = f"{len(report['kernels'])} kernels" if report["ok"] else "none"
        about = report["label"] if report["ok"] else f"{report['label']}: {report['reason']}"
        print(f"{state:<9} {report['form']:<4} {report['seconds']:5.1f} s  {what:<11}  {about}", flush=True)
        yield report
