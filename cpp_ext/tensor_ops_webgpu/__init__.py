"""The ops of `airllm.tensor_ops` on WebGPU (Vulkan, Metal or Direct3D 12), by wgpu.

Arrays are C-contiguous float32, float16 or bfloat16: NumPy's, which give a NumPy array, or an `Array` that
`to_device` has made, which gives one on its device, without a copy to the host and without waiting.
AIRLLM_WEBGPU_DEVICE chooses the device: an index or a part of its name.

Importing this starts nothing: wgpu is imported, and a device opened, by the first call that needs one.
Not across a fork: a process forked after that raises RuntimeError ("spawn" works).
"""

from collections.abc import Callable

from tensor_ops_webgpu.arrays import Array, to_device
from tensor_ops_webgpu.engine import calls, copies
from tensor_ops_webgpu.launches import KERNELS
from tensor_ops_webgpu.survey import (
    device,
    device_infos,
    get_webgpu_info,
    only_when_asked,
    select,
    variants,
)

__all__ = [
    *KERNELS,
    "Array",
    "calls",
    "copies",
    "device",
    "device_infos",
    "get_webgpu_info",
    "only_when_asked",
    "select",
    "to_device",
    "variants",
]


def __getattr__(name: str) -> Callable:
    """The function of an op, made from its declaration when first asked for."""
    if name not in KERNELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tensor_ops_webgpu.function import op_function

    globals()[name] = made = op_function(name)
    return made


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
