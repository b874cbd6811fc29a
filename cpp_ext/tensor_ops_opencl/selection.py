"""Select the OpenCL device to use: the named one, else the best one that works."""

import numpy as np

from airllm.backends import config
from airllm.backends.device.selection import DeviceChoice
from tensor_ops_opencl import host_arrays
from tensor_ops_opencl.devices import GPU_NODES, Device, find_devices, match
from tensor_ops_opencl.engine import Engine


def _configured_device() -> tuple[str, str]:
    """The device named in a file, and the file's key; ("", "default") if there is none."""
    settings = config.load_file()
    if device := settings.own.get("opencl_device"):
        return device, f"{settings.path}: opencl_device"
    return "", "default"


def _silu(device: Device, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)  # in a temporary engine: most listed devices are never used
    host_arrays.run(Engine(device), "silu", {"x": x}, {}, {"out": out})
    return out


choice = DeviceChoice(
    "OpenCL", "AIRLLM_OPENCL_DEVICE", GPU_NODES, find_devices, match, Device.rank, _silu, _configured_device
)
