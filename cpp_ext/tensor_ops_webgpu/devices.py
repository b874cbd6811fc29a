"""Which WebGPU devices there are, and which one is to be used."""

import contextlib
import functools
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NONE_HERE = (
    "no WebGPU device here (GPUs come with their Vulkan, Metal or Direct3D driver; "
    "Debian's mesa-vulkan-drivers makes a device of the CPU)"
)
_KINDS = {"DiscreteGPU": "GPU", "IntegratedGPU": "integrated GPU", "CPU": "CPU"}
_RANKS = ("CPU", "other", "integrated GPU", "GPU")
_FULL = ("Vulkan", "Metal", "D3D12")  # OpenGL's compute shaders fall short of WebGPU's


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
        """One line that names this device alone, e.g. "0 llvmpipe (LLVM 15.0.6, 256 bits) (Vulkan)"."""
        return f"{self.index} {self.name} ({self.adapter.info['backend_type']})"


@functools.cache
def found() -> tuple[Device, ...]:
    """Every adapter that runs the kernels; RuntimeError if there is none, ImportError without wgpu."""
    import wgpu

    with _quiet_drivers():
        adapters = wgpu.gpu.enumerate_adapters_sync()
    able = [adapter for adapter in adapters if adapter.info["backend_type"] in _FULL]
    if not able:
        raise RuntimeError(NONE_HERE)
    return tuple(Device(adapter, index) for index, adapter in enumerate(able))


@contextlib.contextmanager
def _quiet_drivers() -> Iterator[None]:
    """Mesa's drivers print a line for want of a folder for window systems, which are not needed here."""
    name = "XDG_RUNTIME_DIR"
    if sys.platform != "linux" or os.environ.get(name):
        yield
        return
    os.environ[name] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ[name]


_started_in: int | None = None


def refuse_fork() -> None:
    """A driver's threads and handles do not live on in a forked process."""
    global _started_in
    _started_in = _started_in or os.getpid()
    if _started_in != os.getpid():
        raise RuntimeError(
            "WebGPU was started before this process was forked and cannot run in it "
            '(use multiprocessing.get_context("spawn"))'
        )


_choosing = threading.Lock()
_choice: tuple[Device, str] | None = None


def in_use() -> Device:
    """The device that NumPy arrays are computed on, chosen once."""
    return _chosen_once()[0]


def chosen_by() -> str:
    """What chose it: select(), AIRLLM_WEBGPU_DEVICE or "default"."""
    return _chosen_once()[1]


def select(name: str | None) -> None:
    """Choose another device; None: choose again as configured."""
    global _choice
    _choice = (_named(name, "select()"), "select()") if name is not None else None


def _chosen_once() -> tuple[Device, str]:
    global _choice
    with _choosing:
        if _choice is None:
            refuse_fork()
            source = "AIRLLM_WEBGPU_DEVICE"
            wanted = os.environ.get(source, "").strip()
            _choice = (_named(wanted, source), source) if wanted else (_best(found()), "default")
        return _choice


def _named(wanted: str, source: str) -> Device:
    """The device of this index, label or part of a label; ValueError, naming all, if there is none."""
    devices = found()
    fitting = [device for device in devices if wanted in (str(device.index), device.label)]
    fitting = fitting or [device for device in devices if wanted.lower() in device.label.lower()]
    if not fitting or not wanted:
        known = "; ".join(device.label for device in devices)
        raise ValueError(
            f"{source}: unknown WebGPU device {wanted!r}, expected an index or a part of: {known}"
        )
    return _best(fitting)


def _best(devices: Any) -> Device:
    return max(devices, key=lambda device: _RANKS.index(device.kind))
