"""Environments with the oldest or the newest version of each dependency, made by uv.

The versions are those that pyproject.toml allows; the oldest is the first that has a wheel for the Python.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.compatibility.pythons import CHECKOUT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
OF_A_CHECKOUT = ("PYTHONPATH", "VIRTUAL_ENV")


class Failed(Exception):
    """A command failed; the message has the command, and what it printed."""


def run(command: Sequence[str | Path], text: str = "", seconds: float = 1800, **changes: str) -> str:
    """What the command prints, with `changes` to the environment. Failed if it fails, or does not end."""
    words = [str(part) for part in command]
    kept = {name: value for name, value in os.environ.items() if name not in OF_A_CHECKOUT}
    options = {"capture_output": True, "text": True, "cwd": CHECKOUT, "timeout": seconds}
    try:
        done = subprocess.run(words, input=text, env={**kept, **changes}, **options)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(words)}\nhas not ended after {seconds:g} seconds") from None
    if done.returncode:
        raise Failed(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def uv(*arguments: str | Path, text: str = "", **changes: str) -> str:
    return run([sys.executable, "-m", "uv", "--quiet", *arguments], text, **changes)


def requirements(python: Path, versions: str, extras: Sequence[str] = ()) -> str:
    """A line `name==version` for each package that airllm with these extras needs; `versions`: a key of
    RESOLUTIONS.
    """
    return _resolve(python, versions, CHECKOUT / "pyproject.toml", *(f"--extra={name}" for name in extras))


def build_requirements(python: Path, versions: str) -> str:
    """The same of what a build needs."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    return _resolve(python, versions, "-", text="\n".join(project["build-system"]["requires"]))


def _resolve(python: Path, versions: str, *arguments: str | Path, text: str = "") -> str:
    how = ("--resolution", RESOLUTIONS[versions], "--only-binary", ":all:", "--no-header", "--no-annotate")
    return uv("pip", "compile", "--python", python, *how, *arguments, text=text)


def create(folder: Path, python: Path, lines: str) -> Path:
    """The Python of a new virtual environment with what the lines name."""
    uv("venv", "--python", python, folder)
    own = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    uv("pip", "install", "--python", own, "-r", "-", text=lines)
    return own


def install(python: Path, wheel: Path) -> None:
    """Into an environment that has what it needs."""
    uv("pip", "install", "--python", python, "--no-deps", wheel)
