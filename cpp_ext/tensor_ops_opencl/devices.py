"""Which OpenCL devices there are, and which one is to be used."""

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NONE_HERE = (
    'no OpenCL device here (pip install "pyopencl[pocl]" brings a CPU device; GPUs come with their driver)'
)
_GROUP = 256  # work-items of a matmul kernel's group; a device that has fewer runs the CPU form


@dataclass(frozen=True)
class Device:
    """An OpenCL device and the form of the kernel text that it runs."""

    handle: Any
    platform: int
    index: int
    form: str

    @property
    def own_form(self) -> bool:
        return self.form == form_of(self.handle)

    @property
    def label(self) -> str:
        """One line that names this device and form alone, e.g. "1:0 cpu-haswell (PoCL 3.1)"."""
        other = "" if self.own_form else f", {self.form} kernels"
        return f"{self.platform}:{self.index} {self.handle.name.strip()} ({self.driver}{other})"

    @property
    def driver(self) -> str:
        """The platform's version without what every one begins with, "OpenCL 3.0"."""
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
        """Sorts devices: GPUs (with memory of their own, and more of it, first), accelerators, CPUs."""
        kind = ("custom", "CPU", "accelerator", "GPU").index(self.kind)
        memory = self.handle.global_mem_size if self.kind == "GPU" else 0
        shared = bool(self.handle.host_unified_memory)
        version = [int(number) for number in re.findall(r"\d+", self.handle.platform.version)[:4]]
        return kind, not shared, memory, version


def form_of(handle: Any) -> str:
    """The form of the kernel text that suits a device."""
    import pyopencl as cl

    of_few_items = handle.max_work_group_size < _GROUP
    return "cpu" if handle.type & cl.device_type.CPU or of_few_items else "gpu"


def found() -> list[Device]:
    """Every device of every platform; RuntimeError if there is none, ImportError without pyopencl."""
    import pyopencl as cl

    refuse_fork()
    try:
        platforms = cl.get_platforms()
    except cl.LogicError as error:  # the loader's way of saying that there are none
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


_started_in: int | None = None


def refuse_fork() -> None:
    """OpenCL's threads do not live on in a forked process, where its first call would wait for ever."""
    global _started_in
    _started_in = _started_in or os.getpid()
    if _started_in != os.getpid():
        raise RuntimeError(
            "OpenCL was started before this process was forked and cannot run in it "
            '(use multiprocessing.get_context("spawn"))'
        )


def forms(device: Device) -> list[Device]:
    """The device with its own form, and, where it can run that too, with the one for GPUs."""
    both = [device, Device(device.handle, device.platform, device.index, "gpu")]
    return both if device.form == "cpu" and device.handle.max_work_group_size >= _GROUP else both[:1]


_choosing = threading.Lock()
_choice: tuple[Device, str] | None = None


def in_use() -> Device:
    """The device that NumPy arrays are computed on, chosen once."""
    return (_choice or _choose())[0]


def chosen_by() -> str:
    """What chose it: select(), AIRLLM_OPENCL_DEVICE, a key of a file, or "default"."""
    return (_choice or _choose())[1]


def select(name: str | None) -> None:
    """Choose another device; None: choose again as configured."""
    global _choice
    _choice = (_chosen(name, "select()"), "select()") if name is not None else None


def _choose() -> tuple[Device, str]:
    global _choice
    with _choosing:
        if _choice is None:
            wanted, source = _wanted()
            _choice = _chosen(wanted, source), source
        return _choice


def _chosen(wanted: str, source: str) -> Device:
    devices = found()
    if not wanted:
        return max(devices, key=Device.rank)
    fitting = _fitting(wanted, devices)
    if not fitting:
        known = "; ".join(device.label for device in devices)
        raise ValueError(
            f"{source}: unknown OpenCL device {wanted!r}, expected an index or a part of: {known}"
        )
    return max(fitting, key=Device.rank)


def _fitting(wanted: str, devices: list[Device]) -> list[Device]:
    every = [form for device in devices for form in forms(device)]
    if exact := [device for device in every if device.label == wanted]:
        return exact
    if wanted.isdecimal():
        return devices[int(wanted) : int(wanted) + 1]
    if re.fullmatch(r"\d+:\d+", wanted):
        return [device for device in devices if f"{device.platform}:{device.index}" == wanted]
    names = [(device, f"{device.label} {device.handle.platform.name}".lower()) for device in devices]
    return [device for device, name in names if wanted.lower() in name]


def _wanted() -> tuple[str, str]:
    """What the user named, and where; ("", "default") if nothing."""
    named = os.environ.get("AIRLLM_OPENCL_DEVICE", "").strip()
    return (named, "AIRLLM_OPENCL_DEVICE") if named else _configured()


def _configured() -> tuple[str, str]:
    from airllm.backends import config

    settings = config.load_file()
    if settings.opencl_device is None:
        return "", "default"
    return settings.opencl_device, f"{settings.path}: opencl_device"
