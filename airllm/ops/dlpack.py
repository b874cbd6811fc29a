"""Arrays of other libraries: find their device, convert them to NumPy and back, always without a copy."""

import sys
from typing import Any

import ml_dtypes
import numpy as np

from airllm.backends.declaration import all_declarations

_HOST_DEVICES = {1, 3}  # DLPack's kDLCPU and kDLCUDAHost
# DLPack's other device types, by its names for them.
_OTHER_DEVICES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda", 15: "webgpu"}


def device_of(value: Any) -> str:
    """Name of the device whose memory holds an array; "" for host memory and for other objects."""
    if isinstance(value, np.ndarray) or value is None:
        return ""
    if hasattr(value, "__dlpack_device__"):
        kind, index = value.__dlpack_device__()
        return "" if kind in _HOST_DEVICES else f"{_OTHER_DEVICES.get(kind, f'kind {kind}')}:{index}"
    if hasattr(value, "__cuda_array_interface__"):
        return "cuda"
    package = type(value).__module__.partition(".")[0]
    return next((name for name, own in all_declarations().items() if package in own.array_packages), "")


def as_numpy(value: Any) -> np.ndarray:
    """`value` as a NumPy array that shares its memory if possible; raises what its library raises."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    if _is_bfloat16(value):
        return np.from_dlpack(value.view(_library(value).uint16)).view(ml_dtypes.bfloat16)
    return np.from_dlpack(value)


def as_kind_of(given: Any, result: np.ndarray) -> Any:
    """`result` as an array of the library of `given`, sharing its memory."""
    if isinstance(given, np.ndarray) or not hasattr(given, "__dlpack__"):
        return result
    if (library := _library(given)) is None:
        return result
    if _is_bfloat16(given):
        return library.from_dlpack(result.view(np.uint16)).view(library.bfloat16)
    return library.from_dlpack(result)


def place_of(array: np.ndarray) -> tuple:
    """Address, shape and strides: equal for arrays with the same elements in the same order."""
    return array.__array_interface__["data"][0], array.shape, array.strides


def overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays share an element; if that is too hard to decide, whether their bounds overlap."""
    try:
        return np.shares_memory(a, b, max_work=1000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def is_dense(array: np.ndarray) -> bool:
    """Whether a kernel can write to the array without a copy."""
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative


def _library(value: Any) -> Any:
    """The module with the functions of this array type: mlx.core for MLX, else the package, such as torch."""
    module = type(value).__module__
    names = (module.partition(".")[0], module)
    found = [sys.modules[name] for name in names if name in sys.modules]
    return next((each for each in found if hasattr(each, "from_dlpack")), None)


def _is_bfloat16(value: Any) -> bool:
    """NumPy's DLPack does not support bfloat16, so such arrays are passed as 16-bit integers."""
    return str(getattr(value, "dtype", "")).endswith("bfloat16") and hasattr(_library(value), "uint16")
