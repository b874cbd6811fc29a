"""Which of the OpenCL devices is used: the one that is named, else the best one that computes."""

import numpy as np

from airllm.backends import config
from airllm.backends.device.selection import DeviceChoice
from tensor_ops_opencl import host_arrays
from tensor_ops_opencl.devices import GPU_NODES, Device, find_devices, match
from tensor_ops_opencl.engine import Engine


def _configured_device() -> tuple[str, str]:
    """What a file names, and where; ("", "default") if nothing."""
    settings = config.load_file()
    if device := settings.own.get("opencl_device"):
        return device, f"{settings.path}: opencl_device"
    return "", "default"


def _silu(device: Device, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)  # by an engine of its own: most devices are listed and never used
    host_arrays.run(Engine(device), "silu", {"x": x}, {}, {"out": out})
    return out


choice = DeviceChoice(
    "OpenCL", "AIRLLM_OPENCL_DEVICE", GPU_NODES, find_devices, match, Device.rank, _silu, _configured_device
)
