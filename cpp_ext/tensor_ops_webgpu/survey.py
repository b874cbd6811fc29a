"""What a user can ask about WebGPU on this machine."""

import glob
import sys
from typing import Any

from tensor_ops_webgpu import devices
from tensor_ops_webgpu.devices import Device

_GPU_NODES = ("/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/dxg", "/dev/mali*")
_CPU_ONLY = "WebGPU has only CPU devices here, on which cpp is faster; ask for webgpu by name to use it"


def device() -> str:
    """The device in use, in one line; RuntimeError or ImportError with the reason if there is none."""
    used = devices.in_use()
    return f"{used.label}, {used.kind}"


def only_when_asked() -> str:
    """Why an automatic order passes WebGPU over: no GPU. Starts no driver where there can be none."""
    if sys.platform == "linux" and not any(map(glob.glob, _GPU_NODES)):
        return _CPU_ONLY
    try:
        return _CPU_ONLY if devices.in_use().kind == "CPU" else ""
    except (ImportError, RuntimeError, ValueError):
        return ""  # device() says why


def variants() -> list[str]:
    """Every device here: names for select()."""
    return [found.label for found in devices.found()]


def select(name: str | None) -> None:
    """Use this device from now on, named as in AIRLLM_WEBGPU_DEVICE or by variants(); None: as configured.

    Raises ValueError, naming the known ones, if there is no such device.
    """
    devices.select(name)


def get_webgpu_info() -> dict[str, Any]:
    """Whether WebGPU runs here, why not, every device, and which one is used and why."""
    info: dict[str, Any] = {"available": False, "reason": "", "devices": [], "device": "", "chosen_by": ""}
    try:
        import wgpu

        info["wgpu"] = wgpu.__version__
        info["devices"] = [_described(found) for found in devices.found()]
        info["device"], info["chosen_by"] = devices.in_use().label, devices.chosen_by()
        info["available"] = True
    except Exception as error:  # a driver may raise anything at all
        info["reason"] = str(error).strip() or type(error).__name__
    return info


def _described(found: Device) -> dict[str, Any]:
    info, limits = found.adapter.info, found.adapter.limits
    return {
        "label": found.label,
        "name": found.name,
        "type": found.kind,
        "driver": info["description"],
        "buffer_bytes": limits["max-buffer-size"],
        "binding_bytes": limits["max-storage-buffer-binding-size"],
    }


def device_infos() -> list[dict[str, Any]]:
    """Every device, in the fields of `airllm.backends.DeviceInfo`.

    WebGPU tells no device's memory. One that shares the host's has that; of one with memory of its own,
    `total_memory` is the largest buffer that it takes.
    """
    return [_facts(found) for found in devices.found()]


def _facts(found: Device) -> dict[str, Any]:
    from airllm.backends.devices import host_memory

    limits, shares = found.adapter.limits, found.kind != "GPU"
    total, free = host_memory() if shares else (limits["max-buffer-size"], None)
    return {
        "name": found.name,
        "total_memory": total,
        "free_memory": free,
        "unified_memory": shares,
        "max_shared_memory": limits["max-compute-workgroup-storage-size"],
    }
