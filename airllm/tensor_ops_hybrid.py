"""The ops under the older name: C++ (or a GPU) where it runs, NumPy elsewhere. Same as `tensor_ops`."""

from airllm.tensor_ops import *  # noqa: F403
from airllm.tensor_ops import __all__  # noqa: F401
