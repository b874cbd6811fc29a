"""A backend module whose op functions are generated from the declarations at first access."""

import importlib
from collections.abc import Callable, Collection
from typing import Any


def functions_of(
    module: dict[str, Any], ops: Collection[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package with these globals. Its module `function` makes the ops."""
    package = module["__name__"]

    def find(name: str) -> Any:
        if name not in ops:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module[name] = function = importlib.import_module(f"{package}.function").op_function(name)
        return function

    return find, lambda: sorted({*module, *module["__all__"]})
