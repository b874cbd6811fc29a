"""The recipes that build or check the backends of this tree: one module each, named in the declaration.

A recipe has COMMAND, the setup.py command with its options, and `tools()`, the tools it needs. Optional:
`build(folder, force=)`: builds a module called NAME; without it, the command checks and keeps nothing
IN_EVERY_INSTALL: an install tries to build it; others are built with AIRLLM_WITH_<NAME>=1
`why_not_quick()`: why a quick run skips the command
`driver()`: the driver without which the backend cannot run
"""

from importlib import import_module
from types import ModuleType

from airllm.backends.declaration import shipped


def recipes() -> dict[str, ModuleType]:
    """The recipes by backend; those that every install builds come first."""
    found = {
        name: import_module(f".{own.recipe}", __package__) for name, own in shipped().items() if own.recipe
    }
    return dict(sorted(found.items(), key=lambda each: not hasattr(each[1], "IN_EVERY_INSTALL")))


def module_recipes() -> dict[str, ModuleType]:
    """The recipes that build a module."""
    return {name: recipe for name, recipe in recipes().items() if hasattr(recipe, "build")}
