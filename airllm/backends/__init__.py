"""Which backend runs an op: configuration (`config`), discovery and choice (`registry`).

Names of the modules here are reachable from the package, loaded when first used: importing this package
needs only the standard library.
"""

from importlib import import_module
from typing import Any

_WHERE = {
    "devices": ("DeviceInfo",),
    "discovery": (
        "BackendPreference",
        "BackendUnavailable",
        "best_available_backend",
        "discover_backends",
        "get_available_backends",
        "get_default_backend",
        "is_backend_available",
        "list_backends",
        "print_backend_summary",
        "set_default_backend",
    ),
    "registry": (
        "Backend",
        "available",
        "current",
        "get_backend",
        "kernel",
        "opened",
        "reload_backend",
        "set_backend",
        "use_backend",
    ),
    "information": ("explain", "get_backend_info", "print_backend_info"),
    "memory": ("MemoryEstimate", "estimate_inference_memory", "init_backend_with_memory_check"),
    "kernel_backend": ("CpuBackend", "KernelBackend", "init_backend"),
    "support": ("print_support_matrix", "support_matrix"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("airllm.tensor_ops")  # a backend shows that it runs by answering an op
    return getattr(import_module(f"airllm.backends.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
