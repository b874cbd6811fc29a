"""Tensor operations of large language models on whatever the machine has: NumPy, C++ SIMD, OpenCL, CUDA.

`from airllm import tensor_ops` picks the backend; `from airllm import AutoModel` opens a model, and so does
`PersistentKernel`, to decode with it step by step. This package itself imports nothing, so that its
configuration can be read and written (`python setup.py configure_backend`) without NumPy.
"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "AutoModel":
        from airllm.auto_model import AutoModel

        return AutoModel
    if name == "PersistentKernel":
        from airllm.persistent_kernel import PersistentKernel

        return PersistentKernel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "AutoModel", "PersistentKernel"])
