"""An older name of `tensor_ops`: C++ (or a GPU) if it runs here, NumPy otherwise."""

from airllm.tensor_ops import *  # noqa: F403
from airllm.tensor_ops import __all__  # noqa: F401
