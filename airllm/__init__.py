"""Tensor operations of large language models on whatever the machine has: NumPy, C++ SIMD, OpenCL, MLX, CUDA.

`from airllm import tensor_ops` picks the backend; `from airllm import AutoModel` opens a model, and so does
`PersistentKernel`, to decode with it step by step; `get_include()` and `get_cpp_flags()` are for C++
programs. This package itself imports nothing, so that its
configuration can be read and written (`python setup.py configure_backend`) without NumPy.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


_WHERE = {
    "AutoModel": "auto_model",
    "PersistentKernel": "persistent_kernel",
    "get_cpp_flags": "cpp_program",
    "get_include": "cpp_program",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"airllm.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
