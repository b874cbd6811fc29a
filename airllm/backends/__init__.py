"""Which backend runs an op: configuration (`config`), discovery and choice (`registry`).

Names of `registry` are reachable from here, loaded when first used: importing this package needs only
the standard library.
"""

from importlib import import_module
from typing import Any

_REGISTRY = (
    "Backend",
    "available",
    "current",
    "get_backend",
    "get_backend_info",
    "kernel",
    "opened",
    "print_backend_info",
    "reload_backend",
    "set_backend",
    "use_backend",
)


def __getattr__(name: str) -> Any:
    if name in _REGISTRY:
        import_module("airllm.tensor_ops")  # a backend shows that it runs by answering an op
        return getattr(import_module("airllm.backends.registry"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_REGISTRY])
