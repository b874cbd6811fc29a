"""Arrays of other libraries: where they lie, as NumPy's, and back as their kind; never copied on the way."""

import sys
from typing import Any

import ml_dtypes
import numpy as np

from airllm.backends.declaration import all_declarations

_HOST_DEVICES = {1, 3}  # DLPack's kDLCPU and kDLCUDAHost
# DLPack's other kinds, by its words for them.
_OTHER_DEVICES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda", 15: "webgpu"}


def device_of(value: Any) -> str:
    """Name of the device whose memory holds an array; "" for the host's, and for what is no array."""
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
    """`value` as a NumPy array, sharing its memory where that can be; raises what its library raises."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    if _is_bfloat16(value):
        return np.from_dlpack(value.view(_library(value).uint16)).view(ml_dtypes.bfloat16)
    return np.from_dlpack(value)


def as_kind_of(given: Any, result: np.ndarray) -> Any:
    """`result` as an array of the library that `given` came from, sharing its memory."""
    if isinstance(given, np.ndarray) or not hasattr(given, "__dlpack__"):
        return result
    if (library := _library(given)) is None:
        return result
    if _is_bfloat16(given):
        return library.from_dlpack(result.view(np.uint16)).view(library.bfloat16)
    return library.from_dlpack(result)


def place_of(array: np.ndarray) -> tuple:
    """Address, shape and strides: equal for arrays that are the same elements in the same order."""
    return array.__array_interface__["data"][0], array.shape, array.strides


def overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays share an element; where that is too hard to tell, whether their bounds do."""
    try:
        return np.shares_memory(a, b, max_work=1000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def is_dense(array: np.ndarray) -> bool:
    """Whether a kernel can write it as it is."""
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative


def _library(value: Any) -> Any:
    """The module that makes arrays of this kind: mlx.core for MLX's, else the package, such as torch."""
    module = type(value).__module__
    names = (module.partition(".")[0], module)
    found = [sys.modules[name] for name in names if name in sys.modules]
    return next((each for each in found if hasattr(each, "from_dlpack")), None)


def _is_bfloat16(value: Any) -> bool:
    """NumPy's DLPack has no bfloat16; it crosses as 16 bits."""
    return str(getattr(value, "dtype", "")).endswith("bfloat16") and hasattr(_library(value), "uint16")
