"""List the WebGPU devices."""

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from airllm.backends.device.driver_state import Driver

NONE_HERE = (
    "no WebGPU device here (GPUs come with their Vulkan, Metal or Direct3D driver; "
    "Debian's mesa-vulkan-drivers makes a device of the CPU)"
)
GPU_NODES = ("/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/dxg", "/dev/mali*")
_KINDS = {"DiscreteGPU": "GPU", "IntegratedGPU": "integrated GPU", "CPU": "CPU"}
_RANKS = ("CPU", "other", "integrated GPU", "GPU")
_OLDEST_PYTHON = (3, 11)  # of wgpu 0.32; the extra `webgpu` installs nothing for an older one
_FULL = ("Vulkan", "Metal", "D3D12")  # OpenGL's compute shaders lack features of WebGPU's
driver = Driver("WebGPU")


@dataclass(frozen=True)
class Device:
    """A WebGPU adapter: a device that can be opened."""

    adapter: Any
    index: int

    @property
    def name(self) -> str:
        return self.adapter.info["device"]

    @property
    def kind(self) -> str:
        return _KINDS.get(self.adapter.info["adapter_type"], "other")

    @property
    def label(self) -> str:
        """A unique line for this device, e.g. "0 llvmpipe (LLVM 15.0.6, 256 bits) (Vulkan)"."""
        return f"{self.index} {self.name} ({self.adapter.info['backend_type']})"


@functools.cache
def find_devices() -> tuple[Device, ...]:
    """All adapters that run the kernels; RuntimeError if there is none, ImportError without wgpu."""
    if sys.version_info < _OLDEST_PYTHON and find_spec("wgpu") is None:
        needed, own = (".".join(map(str, version[:2])) for version in (_OLDEST_PYTHON, sys.version_info))
        raise RuntimeError(f"wgpu, which it needs, is for Python {needed} or newer, and this is {own}")
    import wgpu

    with _quiet_drivers():
        adapters = wgpu.gpu.enumerate_adapters_sync()
    able = [adapter for adapter in adapters if adapter.info["backend_type"] in _FULL]
    if not able:
        raise RuntimeError(NONE_HERE)
    return tuple(Device(adapter, index) for index, adapter in enumerate(able))


@contextlib.contextmanager
def _quiet_drivers() -> Iterator[None]:
    """Silence Mesa's drivers, which warn about a missing folder for window systems; none is needed here."""
    name = "XDG_RUNTIME_DIR"
    if sys.platform != "linux" or os.environ.get(name):
        yield
        return
    os.environ[name] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ[name]


def find_in_this_process() -> Sequence[Device]:
    """`find_devices`, to open one of them; RuntimeError in a process forked after that."""
    driver.start()
    return find_devices()


def match(requested: str, devices: Sequence[Device]) -> Sequence[Device]:
    """The device with this index or label, else those whose label contains it."""
    fitting = [device for device in devices if requested in (str(device.index), device.label)]
    if fitting or not requested:
        return fitting
    return [device for device in devices if requested.lower() in device.label.lower()]


def rank(device: Device) -> int:
    return _RANKS.index(device.kind)
