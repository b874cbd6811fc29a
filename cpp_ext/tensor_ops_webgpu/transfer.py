"""Copy NumPy arrays to the device in use."""

from typing import Any

import numpy as np

from airllm.formats import Quantized
from tensor_ops_webgpu.arrays import Array, Store
from tensor_ops_webgpu.engine import engine
from tensor_ops_webgpu.selection import choice

_DTYPES = ("float32", "float16", "bfloat16", "bool", "uint8", "int32", "int64")


def to_device(array: Any) -> Any:
    """Copy a NumPy array, or the blocks of a Quantized, to the device in use.

    TypeError for a dtype that no kernel supports.
    """
    if isinstance(array, Quantized):
        return Quantized(to_device(array.data), array.format)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"to_device: array has type {type(array).__name__}, expected a NumPy array")
    if array.dtype.name not in _DTYPES:
        raise TypeError(f"to_device: array has dtype {array.dtype}, expected one of {', '.join(_DTYPES)}")
    block = engine(choice.in_use()).upload(np.ascontiguousarray(array), "to_device: array")
    return Array(Store(block), array.dtype, array.shape)
