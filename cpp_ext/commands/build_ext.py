"""build_ext: compile the backends of every install, and others with AIRLLM_WITH_<NAME>=1."""

import os
import sys
from pathlib import Path
from types import ModuleType

from . import CommandError, probes
from .recipes import module_recipes

HELP = "build the C++ backend (--inplace: into cpp_ext/)"


def add_options(parser) -> None:
    parser.add_argument(
        "--inplace", action="store_true", help="put the module into cpp_ext/ for use in the checkout"
    )
    parser.add_argument(
        "--force", action="store_true", help="build even if the module is newer than its sources"
    )


def run(options) -> None:
    folder = probes.CPP_EXT if options.inplace else probes.CHECKOUT / "build" / "lib"
    for recipe in module_recipes().values():
        if hasattr(recipe, "IN_EVERY_INSTALL"):
            recipe.build(folder, force=options.force)


def from_setuptools(base: type) -> type:
    """The setuptools command; it keeps the options and bookkeeping of `base`, setuptools' build_ext."""

    class BuildExt(base):
        description = HELP

        def run(self):
            folder = probes.CPP_EXT if self.inplace else Path(self.build_lib)
            for name, recipe in module_recipes().items():
                build(name, recipe, folder, self.force, wheel=self._is_for_a_wheel())

        def _is_for_a_wheel(self) -> bool:
            return any(name in ("bdist_wheel", "editable_wheel") for name in self.distribution.commands)

    BuildExt.__name__ = "build_ext"
    return BuildExt


def build(name: str, recipe: ModuleType, folder: Path, force: bool, wheel: bool) -> None:
    """Build a backend if every install has it or an environment variable requests it.

    A failure is an error, except in a wheel for a backend that was not requested: the wheel then gets a
    module that gives the reason.
    """
    variable = f"AIRLLM_WITH_{name.upper()}"
    asked, usual = os.environ.get(variable) == "1", hasattr(recipe, "IN_EVERY_INSTALL")
    if not asked and not usual:
        return
    try:
        recipe.build(folder, force=force)
    except CommandError as error:
        if asked or not wheel:
            raise SystemExit(f"build_ext: {'' if usual else f'{variable}=1: '}{error}") from None
        print(f"warning: build_ext: {error}\nairllm is installed without {recipe.NAME}.", file=sys.stderr)
        leave_note(folder, recipe.NAME, str(error))


NOTE = '''"""Stands where the backend would be: it could not be built when airllm was installed."""

raise ImportError({reason!r})
'''


def leave_note(folder: Path, name: str, reason: str) -> None:
    """Write a module of this name whose import error says why there is no compiled one."""
    remedy = "Install what is missing, then repeat the pip install"
    if folder == probes.CPP_EXT:
        remedy += " (or: python setup.py build_ext --inplace)"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(NOTE.format(reason=f"{reason}\n{remedy}"), encoding="utf-8")
