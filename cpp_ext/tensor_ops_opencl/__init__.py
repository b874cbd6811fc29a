"""The ops of `airllm.tensor_ops` on OpenCL, any platform and device, by pyopencl.

Arrays are C-contiguous float32, float16 or bfloat16: NumPy's, which give a NumPy array, or
`pyopencl.array.Array`, which give one on their queue, without a copy to the host and without waiting.
AIRLLM_OPENCL_DEVICE (or "opencl_device" in backend.json) chooses the device: an index, "platform:device"
indices or a part of its name.

Importing this starts nothing: pyopencl is imported, and a device opened, by the first call that needs one.
Not across a fork: a process forked after that raises RuntimeError ("spawn" works).
"""

from collections.abc import Callable

from tensor_ops_opencl.engine import calls, copies
from tensor_ops_opencl.launches import KERNELS
from tensor_ops_opencl.survey import (
    build_report,
    device,
    device_infos,
    get_opencl_info,
    only_when_asked,
    select,
    variants,
)

__all__ = [
    *KERNELS,
    "build_report",
    "calls",
    "copies",
    "device",
    "device_infos",
    "get_opencl_info",
    "only_when_asked",
    "select",
    "variants",
]


def __getattr__(name: str) -> Callable:
    """The function of an op, made from its declaration when first asked for."""
    if name not in KERNELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tensor_ops_opencl.function import op_function

    globals()[name] = made = op_function(name)
    return made


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
