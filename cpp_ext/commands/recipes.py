"""How the backends of this tree are built or checked: a module each, by the names that they declare.

Such a module has COMMAND, that of setup.py with its options, and `tools()`, what that needs here. Optional:
`build(folder, force=)`, which makes a module called NAME; without it the command checks and keeps nothing
IN_EVERY_INSTALL: an install builds it, and does without where it cannot; others: where AIRLLM_WITH_<NAME>=1
`why_not_quick()`: why a quick run leaves the command out
`driver()`: without it there is no use in trying the backend
"""

from importlib import import_module
from types import ModuleType

from airllm.backends.declaration import shipped


def recipes() -> dict[str, ModuleType]:
    """Of each backend that has one, those first that every install builds."""
    found = {
        name: import_module(f".{own.recipe}", __package__) for name, own in shipped().items() if own.recipe
    }
    return dict(sorted(found.items(), key=lambda each: not hasattr(each[1], "IN_EVERY_INSTALL")))


def module_recipes() -> dict[str, ModuleType]:
    """Of them those that make a module."""
    return {name: recipe for name, recipe in recipes().items() if hasattr(recipe, "build")}
