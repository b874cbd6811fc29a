"""Optional packages: which extra contains them, and the command that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

_DISTRIBUTION = "airllm-tensor-ops"
_CHECKOUT = Path(__file__).resolve().parents[1]
# Extra of pyproject.toml -> the modules that it installs. `all` and `test` combine these.
MODULES = {
    "models": ("tokenizers", "jinja2", "rich", "gguf", "prompt_toolkit"),
    "hub": ("huggingface_hub",),
    "serve": ("starlette", "uvicorn", "msgspec", "prometheus_client"),
    "report": ("matplotlib", "threadpoolctl"),
    "mpi": ("mpi4py",),
    "structured": ("llguidance",),
    "ray": ("ray",),
}


class MissingExtra(ModuleNotFoundError):
    """A package of an extra is not installed. The message has the command to install it."""


@contextmanager
def require_extra(extra: str) -> Iterator[None]:
    """Raise MissingExtra if the body of the `with` lacks a package of `extra`."""
    try:
        yield
    except MissingExtra:
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in MODULES[extra]:
            raise
        raise MissingExtra(message(package), name=error.name) from error


def message(package: str) -> str:
    """What to do about a missing package: all packages that its extra lacks, and one command."""
    extra = _extra_of(package)
    if extra is None:
        return f"this needs the package {package}, which is not installed: python -m pip install {package}"
    missing = [name for name in MODULES[extra] if name == package or not _is_there(name)]
    some = f"packages {', '.join(missing)}, which are" if len(missing) > 1 else f"package {package}, which is"
    return f"this needs the {some} not installed: {command(extra)}"


def command(extra: str) -> str:
    """The command that installs an extra, of this checkout or of the installed distribution."""
    if not (_CHECKOUT / "pyproject.toml").is_file():
        return f'pip install "{_DISTRIBUTION}[{extra}]"'
    here = "." if Path.cwd() == _CHECKOUT else _CHECKOUT
    return f'pip install -e "{here}[{extra}]"'


def _extra_of(package: str) -> str | None:
    return next((extra for extra, modules in MODULES.items() if package in modules), None)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # a module in its place has no spec
        return False
