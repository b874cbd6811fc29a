"""Large language models, and their tensor operations, on whatever the machine has, from NumPy to CUDA.

`from airllm import tensor_ops` chooses the backend. `AutoModel` opens a model, and `PersistentKernel` opens
one to decode step by step. `get_available_backends()` and the other functions about backends are those of
`airllm.backends`. `get_include()`, `get_cpp_flags()` and `get_cmake_dir()` are for C++ programs. This package
itself imports nothing, so that its configuration can be read and written
(`python setup.py configure_backend`) without NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of _WHERE, for type checkers; isort would split this one import
    # isort: off
    from airllm.engine.auto_model import AutoModel as AutoModel
    from airllm.backends import (
        BackendPreference as BackendPreference,
        BackendUnavailable as BackendUnavailable,
        CpuBackend as CpuBackend,
        KernelBackend as KernelBackend,
        best_available_backend as best_available_backend,
        discover_backends as discover_backends,
        estimate_inference_memory as estimate_inference_memory,
        get_available_backends as get_available_backends,
        get_backend_info as get_backend_info,
        get_default_backend as get_default_backend,
        init_backend as init_backend,
        init_backend_with_memory_check as init_backend_with_memory_check,
        is_backend_available as is_backend_available,
        list_backends as list_backends,
        print_backend_summary as print_backend_summary,
        set_default_backend as set_default_backend,
    )
    from airllm.cpp_program import (
        get_cmake_dir as get_cmake_dir,
        get_cpp_flags as get_cpp_flags,
        get_include as get_include,
    )
    from airllm.engine.engine import LayerWiseInferenceEngine as LayerWiseInferenceEngine
    from airllm.engine.persistent_kernel import PersistentKernel as PersistentKernel

__version__ = "0.1.0"

# Module -> its names that this package exports; the module is imported on first use.
_WHERE = {
    "airllm.engine.auto_model": ("AutoModel",),
    "airllm.engine.engine": ("LayerWiseInferenceEngine",),
    "airllm.engine.persistent_kernel": ("PersistentKernel",),
    "airllm.cpp_program": ("get_cmake_dir", "get_cpp_flags", "get_include"),
    "airllm.backends": (
        "BackendPreference",
        "BackendUnavailable",
        "CpuBackend",
        "KernelBackend",
        "best_available_backend",
        "discover_backends",
        "estimate_inference_memory",
        "get_available_backends",
        "get_backend_info",
        "get_default_backend",
        "init_backend",
        "init_backend_with_memory_check",
        "is_backend_available",
        "list_backends",
        "print_backend_summary",
        "set_default_backend",
    ),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
