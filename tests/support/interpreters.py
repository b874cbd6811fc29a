"""Fresh interpreters that import the C++ backend's module as a program does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start_interpreter(code, *arguments, **environment):
    """A fresh interpreter that has run this."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "cpp_ext"), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, **environment}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def python(code, *arguments, **environment):
    done = start_interpreter(code, *arguments, **environment)
    return done.stdout.strip(), done.stderr
