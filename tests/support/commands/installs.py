"""Distributions of the checkout, and environments of their own in which they are installed."""

import json
import re
import sys
from pathlib import Path

import checkouts

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
USE = """
import json, numpy
from airllm import tensor_ops
answer = float(tensor_ops.silu(numpy.ones(8, numpy.float32))[0])
info = tensor_ops.get_backend_info()
import airllm
print(json.dumps([info["backend"], round(answer, 5), info["unavailable"].get("cpp", ""), airllm.__file__]))
"""


def pip(python: Path, *arguments: str, **changes: str) -> None:
    """Runs this environment's pip for another one; what is used once need not be compiled. A checkout on
    PYTHONPATH would count as installed.
    """
    command = [*PIP, "--python", str(python), *arguments]
    answer = checkouts.run(command, python.parent, PIP_NO_COMPILE="1", PYTHONPATH="", **changes)
    assert answer.returncode == 0, checkouts.output_of(answer)


def use_backend(python: Path, folder: Path) -> list:
    """Which backend airllm uses, what silu(1) is, why there is no C++ backend, and where the package lies."""
    answer = checkouts.run([str(python), "-W", "error", "-c", USE], folder, PYTHONPATH="")
    assert answer.returncode == 0, checkouts.output_of(answer)
    return json.loads(answer.stdout)


def wheel(source: Path, folder: Path, **changes: str) -> Path:
    """The wheel of an sdist or a checkout."""
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    answer = checkouts.run(command, folder, **changes)
    assert answer.returncode == 0, checkouts.output_of(answer)
    return next(folder.glob("airllm_tensor_ops-*.whl"))


def check_cpp_program(python: Path, folder: Path, place: Path) -> None:
    """A C++ program finds the header, and all that the source file of the backends includes, in `place`."""
    flags = checkouts.run([str(python), "-m", "airllm", "cpp-flags"], folder, PYTHONPATH="").stdout.split()
    cmake = checkouts.run([str(python), "-m", "airllm", "cpp-flags", "--cmake-dir"], folder, PYTHONPATH="")
    assert (
        cmake.stdout.startswith(str(place)) and (Path(cmake.stdout.strip()) / "airllm-config.cmake").is_file()
    )
    example = str(checkouts.ROOT / "examples" / "registry.cpp")
    answer = checkouts.run(["g++", "-MM", example, *flags], folder)
    assert answer.returncode == 0, checkouts.output_of(answer)
    ours = [name for name in re.findall(r"\S*cpp_ext/\S+", answer.stdout) if name != flags[-1]]
    assert "kernels.inl" in answer.stdout and flags[-1].startswith(str(place))
    assert all(Path(name).is_relative_to(place) for name in ours), ours
