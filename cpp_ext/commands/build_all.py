"""Run the setup.py commands that build and check backends, and return the results as plain values."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from airllm.backends import config, reasons
from airllm.backends.declaration import shipped
from airllm.progress import step

from .probes import CHECKOUT, CPP_EXT
from .recipes import module_recipes, recipes

if TYPE_CHECKING:
    from rich.console import Console


def detect(console: Console) -> str:
    """The output of `setup.py test_capabilities`."""
    with step(console, "Looking for compilers, toolkits and devices", counted=False) as on_progress:
        found = run_command("test_capabilities", on_progress=on_progress)
    return found.stdout.strip() or found.stderr.strip()


def build_all(console: Console, quick: bool, named: Collection[str] = ()) -> list[dict[str, str]]:
    """Build every backend whose tools are installed. A missing tool is a reason; a failed build is a failure.

    A failed check, of a command that builds nothing, is also a reason, unless its backend is `named` or
    configured. `quick` skips the slowest builds if their result cannot be used here.
    """
    settings = config.load()
    required = {settings.force_backend, settings.preferred_backend, *named}
    return [build(console, name, quick, name in required) for name in recipes()]


def build(console: Console, name: str, quick: bool = False, required: bool = True) -> dict[str, str]:
    """Run the setup.py command of a backend. If it fails, that is a failure, with its log; or a reason, if
    the command builds nothing and the backend is not `required`.
    """
    command, makes = recipes()[name].COMMAND, name in module_recipes()
    if why := missing_for(name) or (why_left_out(name) if quick else ""):
        return {"name": name, "state": "skipped", "detail": why}
    spoken, before, start = f"python setup.py {' '.join(command)}", newest(name), time.monotonic()
    with step(console, spoken, counted=False) as on_progress:
        done = run_command(*command, on_progress=on_progress)
    if done.returncode:
        log = (done.stdout + done.stderr).strip() or f"{spoken}: exit status {done.returncode}"
        why = reasons.error_line(log) or log.splitlines()[-1].strip()
        if not makes and not required:
            return {"name": name, "state": "unavailable", "detail": f"{why} ({spoken})"}
        console.print(log, markup=False, soft_wrap=True)
        return {"name": name, "state": "failed", "detail": why}
    changed = "built" if newest(name) > before else "up to date"
    state = changed if makes else "checked"
    return {"name": name, "state": state, "detail": f"{spoken}, {time.monotonic() - start:.1f} s"}


def why_left_out(name: str) -> str:
    """Why a quick run does not build a backend; "" if it does."""
    return getattr(recipes()[name], "why_not_quick", str)()


def newest(name: str) -> int:
    """Modification time of a backend's module; a build does not touch one that is up to date."""
    files = CPP_EXT.glob(f"{shipped()[name].module}.*")
    return max((path.stat().st_mtime_ns for path in files), default=0)


def missing_for(name: str) -> str:
    """Why a backend cannot be built here, with the remedy; "" if it can be."""
    return "; ".join(map(str, recipes()[name].tools().missing))


def run_command(
    *command: str, on_progress: Callable[[int, int, str], None]
) -> subprocess.CompletedProcess[str]:
    """Run a setup.py command as a user would, and capture its output."""
    call, start = [sys.executable, "setup.py", *command], time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        call, cwd=CHECKOUT, stdout=pipe, stderr=pipe, text=True, errors="replace"
    ) as process:
        while True:
            try:
                output, log = process.communicate(timeout=1)
                return subprocess.CompletedProcess(call, process.returncode, output, log)
            except subprocess.TimeoutExpired:
                on_progress(0, 0, f"{' '.join(command)}: {time.monotonic() - start:.0f} s")
            except BaseException:
                process.kill()
                raise
