"""The CPU kernels compiled apart from Python: tests/cpp/test_kernels.cpp, and what it must print."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from environment import ALL, needs

from airllm.backends import open_backend

ROOT = Path(__file__).parents[3]
CPP = ROOT / "tests" / "cpp"
CXX = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or ""
# With AVX-512 it takes a compiler twice as long.
SETS = [] if ALL else ["-DAIRLLM_WITHOUT_AVX512"]


def compiler() -> str:
    needs("cpp", CXX, "no C++ compiler")
    return CXX


def compile_program(folder: Path, cxx: str, *flags: str) -> str:
    # The source for 16 lanes runs on 8-lane instructions where the CPU has no wider ones.
    variants = getattr(open_backend("cpp").module, "variants", list)()
    targets = [] if "avx512" in variants else ["-DAIRLLM_TEST_TARGETS"]
    program = folder / "test_kernels"
    options = ["-std=c++17", "-Wall", *targets, *flags, str(CPP / "test_kernels.cpp"), "-o", str(program)]
    done = subprocess.run([cxx, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return str(program)


def passes(*command: str, **environment: str) -> str:
    """What it printed: how many checks each set passed."""
    variables = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=600)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and done.stderr == "", said
    assert re.search(r"^\d{3,} passed, 0 failed$", done.stdout, re.M), said
    return done.stdout
