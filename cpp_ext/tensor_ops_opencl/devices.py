"""List the OpenCL devices."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airllm.backends.device.driver_state import Driver

NONE_HERE = (
    "no OpenCL device here (GPUs come with their driver; Debian's pocl-opencl-icd makes a device of the CPU)"
)
GPU_NODES = ("/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg", "/dev/mali*")
_GROUP = 256  # work-items in a matmul kernel's group; a device that allows fewer runs the CPU form
driver = Driver("OpenCL")


@dataclass(frozen=True)
class Device:
    """An OpenCL device and the form of the kernel source that it runs."""

    handle: Any
    platform: int
    index: int
    form: str

    @property
    def own_form(self) -> bool:
        return self.form == form_of(self.handle)

    @property
    def label(self) -> str:
        """A unique line for this device and form, e.g. "1:0 cpu-haswell (PoCL 3.1)"."""
        other = "" if self.own_form else f", {self.form} kernels"
        return f"{self.platform}:{self.index} {self.handle.name.strip()} ({self.driver}{other})"

    @property
    def driver(self) -> str:
        """The platform's version without the common prefix, such as "OpenCL 3.0"."""
        words = self.handle.platform.version.split()
        return " ".join(words[2:4]) or self.handle.driver_version

    @property
    def kind(self) -> str:
        import pyopencl as cl

        kinds = {
            "GPU": cl.device_type.GPU,
            "accelerator": cl.device_type.ACCELERATOR,
            "CPU": cl.device_type.CPU,
        }
        return next((name for name, bit in kinds.items() if self.handle.type & bit), "custom")

    def rank(self) -> tuple:
        """Sort key: GPUs first (dedicated memory, then more memory), then accelerators, then CPUs."""
        kind = ("custom", "CPU", "accelerator", "GPU").index(self.kind)
        memory = self.handle.global_mem_size if self.kind == "GPU" else 0
        shared = bool(self.handle.host_unified_memory)
        version = [int(number) for number in re.findall(r"\d+", self.handle.platform.version)[:4]]
        return kind, not shared, memory, version


def form_of(handle: Any) -> str:
    """The form of the kernel source for a device."""
    import pyopencl as cl

    of_few_items = handle.max_work_group_size < _GROUP
    return "cpu" if handle.type & cl.device_type.CPU or of_few_items else "gpu"


def find_devices() -> list[Device]:
    """Every device of every platform; RuntimeError if there is none, ImportError without pyopencl."""
    import pyopencl as cl

    driver.start()
    try:
        platforms = cl.get_platforms()
    except cl.LogicError as error:  # the loader raises this if there are none
        raise RuntimeError(NONE_HERE) from error
    devices = [
        Device(handle, p, d, form_of(handle))
        for p, platform in enumerate(platforms)
        for d, handle in _handles(platform)
    ]
    if not devices:
        raise RuntimeError(NONE_HERE)
    return devices


def _handles(platform: Any) -> Iterator[tuple[int, Any]]:
    import pyopencl as cl

    try:
        yield from enumerate(platform.get_devices())
    except cl.RuntimeError:  # DEVICE_NOT_FOUND: a platform may have none
        return


def forms(device: Device) -> list[Device]:
    """The device with its own form, and also with the GPU form if it can run that."""
    both = [device, Device(device.handle, device.platform, device.index, "gpu")]
    return both if device.form == "cpu" and device.handle.max_work_group_size >= _GROUP else both[:1]


def match(requested: str, devices: Sequence[Device]) -> Sequence[Device]:
    every = [form for device in devices for form in forms(device)]
    if exact := [device for device in every if device.label == requested]:
        return exact
    if requested.isdecimal():
        return devices[int(requested) : int(requested) + 1]
    if re.fullmatch(r"\d+:\d+", requested):
        return [device for device in devices if f"{device.platform}:{device.index}" == requested]
    names = [(device, f"{device.label} {device.handle.platform.name}".lower()) for device in devices]
    return [device for device, name in names if requested.lower() in name]
