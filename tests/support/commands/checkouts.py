"""Copies of the checkout for tests that run its commands as a user does: what they change stays there."""

import functools
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from cpp_ext.commands import cpp_build, probes, stamps

ROOT = Path(__file__).resolve().parents[3]
SETUP = [sys.executable, "-W", "error::DeprecationWarning", "setup.py"]
COMPILED_BEFORE = """for target; do :; done
case "$*" in
  *AIRLLM_SETS_APART*) {cxx} "$@" -M && : > "$target";;
  *tensor_ops_cpp.o*) cp {module} "$target";;
  *) exec {cxx} "$@";;
esac
"""


def files() -> list[str]:
    """What a clone would have, and what is not committed yet; without git, what no build has made."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if answer.returncode == 0:
        return [name for name in answer.stdout.split("\0") if name and (ROOT / name).is_file()]
    made = (".so", ".o", ".pyc")
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file() and path.suffix not in made)
    return [str(path) for path in found if not {"build", ".git", "__pycache__"} & set(path.parts)]


def copy(folder: Path) -> Path:
    """A checkout in `folder`, nothing built."""
    for name in files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def built_copy(folder: Path) -> Path:
    """A checkout in `folder` with the C++ backend built in place, up to date if the checkout's own is."""
    copy(folder)
    shutil.copy2(cpp_module(), folder / "cpp_ext")
    if stamps.FOLDER.is_dir():
        shutil.copytree(stamps.FOLDER, folder / stamps.FOLDER.relative_to(ROOT))
    return folder


@functools.cache
def cpp_module() -> Path:
    """The C++ backend's module: the checkout's own where it is up to date, else built once for all tests."""
    own = probes.CPP_EXT / (cpp_build.NAME + probes.EXT_SUFFIX)
    if cpp_build.is_newer(own, cpp_build.sources()):
        return own
    return cpp_build.build(Path(tempfile.mkdtemp(prefix="airllm-cpp-")))


def compiled_before(folder: Path) -> dict[str, str]:
    """Variables of a C++ compiler for tests of what surrounds a build: it reads the sources, with the
    options it is given, and then gives the module that was compiled of the same already.
    """
    cxx = shlex.join(probes.cxx_command())
    text = COMPILED_BEFORE.format(cxx=cxx, module=cpp_module())
    return {"CXX": str(script(folder / "compiler", text))}


def empty_environment(folder: Path) -> Path:
    """The Python of a new virtual environment in which nothing is installed, not even pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, airllm's variables left out and this Python's folder first on PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRLLM_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", "PYTHONSAFEPATH": "", **changes}


def run(command: list[str] | str, cwd: Path, timeout=600, **changes: str) -> subprocess.CompletedProcess:
    """Runs a command, or a script of bash, with `changes` to the environment."""
    command = ["bash", "-euo", "pipefail", "-c", command] if isinstance(command, str) else command
    variables = environment(**changes)
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout)


def output_of(answer: subprocess.CompletedProcess) -> str:
    """Everything a command wrote, for the message of an assertion."""
    return f"exit status {answer.returncode}\n{answer.stdout}\n{answer.stderr}"


def script(path: Path, text: str) -> Path:
    """A file that the shell runs."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
