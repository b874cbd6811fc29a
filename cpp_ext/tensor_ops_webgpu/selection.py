"""Select the WebGPU device to use: the named one, else the best one that works."""

import numpy as np

from airllm.backends.device.selection import DeviceChoice
from tensor_ops_webgpu.compute import compute_on_host
from tensor_ops_webgpu.devices import GPU_NODES, Device, find_in_this_process, match, rank
from tensor_ops_webgpu.engine import engine


def _silu(device: Device, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    compute_on_host(engine(device), "silu", {"x": x}, {}, {"out": out})
    return out


choice = DeviceChoice("WebGPU", "AIRLLM_WEBGPU_DEVICE", GPU_NODES, find_in_this_process, match, rank, _silu)
