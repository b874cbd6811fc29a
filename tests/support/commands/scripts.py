"""The checkout's scripts, as their users run them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments, script="detect_and_benchmark.py", cwd=ROOT, **environment):
    """The finished process; `script` is a path in the checkout."""
    return subprocess.run(
        [sys.executable, ROOT / script, *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, timeout=600, env={**os.environ, **environment},
    )  # fmt: skip
