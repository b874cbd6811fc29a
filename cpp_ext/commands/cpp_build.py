"""How tensor_ops_cpp is built: one compiler call on one file, without a build system.

The same call as the manual one of BACKEND_GUIDE.md, plus OpenMP where the compiler has it.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from . import CommandError, probes, stamps

NAME = "tensor_ops_cpp"
SOURCE = probes.CPP_EXT / "tensor_ops_cpp.cpp"
FLAGS = ["-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-DNDEBUG"]
SHARED = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]


def build(folder: Path, force: bool = False) -> Path:
    """Builds tensor_ops_cpp into `folder` unless it is there, made of the same; returns its path.

    Raises CommandError that lists everything missing, or that carries the compiler's first error.
    """
    target = folder / (NAME + probes.EXT_SUFFIX)
    call = command()
    made_of = stamps.digest(recipe(call), sources())
    if not force and stamps.is_current(target, made_of):
        print(f"{NAME}: {target} is up to date")
        return target
    folder.mkdir(parents=True, exist_ok=True)
    finish(call, target)
    stamps.keep(target, made_of)
    (folder / f"{NAME}.py").unlink(missing_ok=True)  # the note an earlier install without a compiler left
    return target


def sources() -> list[Path]:
    """Every file whose change makes a rebuild necessary, this recipe among them."""
    parts = sorted(f for folder in ("bindings", "cpu") for f in (probes.CPP_EXT / folder).glob("*.*"))
    return [SOURCE, *sorted(probes.CPP_EXT.glob("*.h")), *parts, Path(__file__)]


def command() -> list[str]:
    """The compiler call, less its output."""
    missing = [finding for finding in probes.cpp_prerequisites() if not finding]
    if missing:
        reasons = "\n".join(f"  {finding}" for finding in missing)
        raise CommandError(f"{NAME} cannot be built here\n{reasons}")
    cxx = probes.cxx_command()
    openmp = probes.openmp(cxx)
    threads = ["-fopenmp"] if openmp else []
    if not openmp:
        print(f"{NAME}: building without threads: {openmp}", file=sys.stderr)
    users = user_flags("CPPFLAGS", "CFLAGS", "CXXFLAGS", "LDFLAGS")
    return [*cxx, *FLAGS, *threads, *SHARED, *includes(), *users, str(SOURCE)]


def recipe(call: list[str]) -> list[str]:
    """What decides what a call makes, beside its sources: its options and the versions of its tools.

    Python's headers and pybind11's go by version: each build of pip has them in a folder of its own.
    """
    by_version = includes()
    options = [part for part in call if part not in by_version]
    return [*options, str(probes.compiler(probes.cxx_command())), sys.version, probes.pybind11().version]


def includes() -> list[str]:
    """-I options of Python's headers and pybind11's."""
    folders = (sysconfig.get_path("include"), sysconfig.get_path("platinclude"), probes.pybind11().path)
    return [f"-I{folder}" for folder in dict.fromkeys(folders)]


def user_flags(*names: str) -> list[str]:
    """The options in these environment variables; they come last, so that they win."""
    return [flag for name in names for flag in shlex.split(os.environ.get(name, ""))]


def finish(call: list[str], target: Path) -> None:
    """Runs a compiler call that makes `target`, under another name first: one in use is not overwritten."""
    half = target.with_name(f".{target.name}.{os.getpid()}")
    call = [*call, "-o", str(half)]
    print(shlex.join(call), flush=True)
    answer = subprocess.run(call, stderr=subprocess.PIPE, text=True, errors="replace")
    sys.stderr.write(answer.stderr)
    if answer.returncode:
        half.unlink(missing_ok=True)
        reason = probes.first_error(answer.stderr)
        raise CommandError(f"{call[0]} failed with exit status {answer.returncode}: {reason}")
    half.replace(target)


def is_newer(target: Path, than: list[Path]) -> bool:
    """Whether `target` exists and was made after every file of `than`."""
    return target.is_file() and target.stat().st_mtime > max(path.stat().st_mtime for path in than)
