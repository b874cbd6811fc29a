"""Backend configuration (`config`), discovery and choice (`registry`).

The package exports names of its modules and imports a module at first use, so importing the package needs
only the standard library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of _WHERE, for type checkers; isort would split the imports
    # isort: off
    from airllm.backends.api.cpp_backend import CpuBackend as CpuBackend
    from airllm.backends.devices import DeviceInfo as DeviceInfo
    from airllm.backends.api.discovery import (
        BackendPreference as BackendPreference,
        BackendUnavailable as BackendUnavailable,
        best_available_backend as best_available_backend,
        discover_backends as discover_backends,
        get_available_backends as get_available_backends,
        get_default_backend as get_default_backend,
        is_backend_available as is_backend_available,
        list_backends as list_backends,
        print_backend_summary as print_backend_summary,
        set_default_backend as set_default_backend,
    )
    from airllm.backends.describe import (
        explain as explain,
        get_backend_info as get_backend_info,
        print_backend_info as print_backend_info,
    )
    from airllm.backends.api.kernel_backend import (
        KernelBackend as KernelBackend,
        init_backend as init_backend,
    )
    from airllm.backends.api.memory import (
        MemoryEstimate as MemoryEstimate,
        estimate_inference_memory as estimate_inference_memory,
        init_backend_with_memory_check as init_backend_with_memory_check,
    )
    from airllm.backends.registry import (
        Backend as Backend,
        available as available,
        current as current,
        get_backend as get_backend,
        kernel as kernel,
        open_backend as open_backend,
        opened as opened,
        reload_backend as reload_backend,
        set_backend as set_backend,
        use_backend as use_backend,
    )
    from airllm.backends.api.support import (
        print_support_matrix as print_support_matrix,
        support_matrix as support_matrix,
    )

_WHERE = {
    "devices": ("DeviceInfo",),
    "api.discovery": (
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
        "open_backend",
        "opened",
        "reload_backend",
        "set_backend",
        "use_backend",
    ),
    "describe": ("explain", "get_backend_info", "print_backend_info"),
    "api.memory": ("MemoryEstimate", "estimate_inference_memory", "init_backend_with_memory_check"),
    "api.cpp_backend": ("CpuBackend",),
    "api.kernel_backend": ("KernelBackend", "init_backend"),
    "api.support": ("print_support_matrix", "support_matrix"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_module("airllm.tensor_ops")  # to show that it runs, a backend must compute an op
        return getattr(import_module(f"airllm.backends.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
