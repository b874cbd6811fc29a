"""Probes for OpenCL: pyopencl, and the devices of its drivers."""

import json
import subprocess
import sys

from airllm.backends.shipped.opencl import BACKEND

from . import probes
from .probes import Finding

# Prints each device before it is tried and the result afterwards: a driver may end the process.
OPENCL_PROGRAM = """
import json, os.path, sys
sys.path.insert(0, sys.argv[1])
sys.path.append(os.path.dirname(sys.argv[1]))
import pyopencl as cl
from tensor_ops_opencl.devices import find_devices
from tensor_ops_opencl.selection import choice
tell = lambda *words: print("told:", json.dumps(" ".join(words)), flush=True)
tell("pyopencl", cl.VERSION_TEXT)
for device in find_devices()[int(sys.argv[2]):]:
    tell(device.label)
    tell(choice.why_not(device))
"""


def devices() -> Finding:
    """pyopencl with every device as a detail, if one of them works."""
    version, tried, reason = _devices_of_opencl()
    details = tuple(f"{name} cannot be used: {why}" if why else name for name, why in tried)
    if any(not why for _, why in tried):
        return Finding("OpenCL", version=version, details=details)
    if tried:
        return Finding("OpenCL", why_not="; ".join(details))
    return Finding("OpenCL", why_not=reason, remedy=BACKEND.how_to_get())


def _devices_of_opencl() -> tuple[str, list[tuple[str, str]], str]:
    """pyopencl's version, each device with the reason why it does not work, and why the list ends.

    The devices are tried in a separate process; if one ends it, the rest are tried in a new process.
    """
    tried: list[tuple[str, str]] = []
    while True:
        command = [sys.executable, "-c", OPENCL_PROGRAM, str(probes.CPP_EXT), str(len(tried))]
        answer = probes.answer_of(command, timeout=600, cwd=sys.prefix)
        messages = [json.loads(line[6:]) for line in answer.stdout.splitlines() if line.startswith("told: ")]
        version, found = next(iter(messages), ""), messages[1:]
        tried += zip(found[::2], found[1::2], strict=False)
        if len(found) % 2 == 0:
            return version, tried, _exception(answer)
        tried.append((found[-1], f"its driver ends the process with status {answer.returncode}"))


def _exception(answer: subprocess.CompletedProcess) -> str:
    """The error message of a failed Python program, without the exception's name."""
    reason = probes.last_line(answer.stderr) or f"listing the devices ended with status {answer.returncode}"
    return reason.removeprefix("ModuleNotFoundError: ").removeprefix("RuntimeError: ")
