"""What CI asks of backends: by their declarations, and by programs in drivers/ that have their names.

required: the backends that an install brings, with commas between them
packages: what pip has to install for the programs, a line each
broken: which drivers compute nothing on this CPU, a line each: its backend's name, and why

A CPU may be newer than all that compile for it, and no change of this repository cures that. Apart from
what is tested, whose own faults must not look like that. Each in a process of its own: a driver may end it.
"""

import subprocess
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    from pip._vendor import tomli as tomllib

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airllm.backends.declaration import shipped
from cpp_ext.commands.recipes import module_recipes

HERE = Path(__file__).resolve().parent
PROGRAMS = {path.stem: path for path in sorted((HERE / "drivers").glob("*.py"))}


def required() -> list[str]:
    asked_for = {name for name, recipe in module_recipes().items() if not hasattr(recipe, "IN_EVERY_INSTALL")}
    names = [name for name, own in shipped().items() if not own.definitions and name not in asked_for]
    return [",".join(names)]


def packages() -> list[str]:
    extras = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [each for name in PROGRAMS for each in extras[shipped()[name].extra]]


def broken() -> list[str]:
    whys = {name: why_broken(path.read_text()) for name, path in PROGRAMS.items()}
    return [f"{name} {why}" for name, why in whys.items() if why]


def why_broken(program: str) -> str:
    """What a program says as it fails; "" if it does not."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    if not done.returncode:
        return ""
    return " ".join(done.stderr.split())[-400:] or f"its process ends with status {done.returncode}"


for line in {"required": required, "packages": packages, "broken": broken}[sys.argv[1]]():
    print(line)
