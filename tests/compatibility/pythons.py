"""The Pythons that airllm is for, and where they are on this machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
CLASSIFIER = r'"Programming Language :: Python :: (3\.\d+)"'
SAY = "import platform, sys; print(platform.python_implementation(), '%d.%d' % sys.version_info[:2])"


def supported() -> list[str]:
    """The versions that the classifiers of pyproject.toml name, oldest first."""
    return re.findall(CLASSIFIER, (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))


def find(version: str) -> Path | None:
    """A CPython of this version: this one, one on PATH, pyenv's, or uv's; None if there is none."""
    return next((path for path in _candidates(version) if _is(path, version)), None)


def _candidates(version: str) -> list[Path]:
    path = [Path(folder) / f"python{version}" for folder in os.environ.get("PATH", "").split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"), key=_patch, reverse=True)
    return [Path(sys.executable), *path, *installed, *_of_uv(version)]


def _of_uv(version: str) -> list[Path]:
    """Those of `uv python install`, newest first; but not those without a GIL, whose names have a plus."""
    answer = subprocess.run([sys.executable, "-m", "uv", "python", "dir"], capture_output=True, text=True)
    folders = Path(answer.stdout.strip()).glob(f"cpython-{version}.*") if not answer.returncode else ()
    found = [folder / "bin" / f"python{version}" for folder in folders if "+" not in folder.name]
    return sorted(found, key=_patch, reverse=True)


def _patch(python: Path) -> list[int]:
    """The numbers of its version, by the name of the folder that pyenv or uv made for it."""
    return [int(number) for number in re.findall(r"\d+", python.parts[-3])]


def _is(python: Path, version: str) -> bool:
    """Whether it runs, too: what pyenv puts on PATH is there for versions that it does not run."""
    if not python.is_file():
        return False
    answer = subprocess.run([str(python), "-c", SAY], capture_output=True, text=True)
    return answer.stdout.strip() == f"CPython {version}"
