"""Information about WebGPU on this machine, for users."""

from typing import Any

from tensor_ops_webgpu import devices
from tensor_ops_webgpu.devices import Device
from tensor_ops_webgpu.selection import choice


def device() -> str:
    """The device in use, in one line; RuntimeError or ImportError with the reason if there is none."""
    used = choice.in_use()
    return f"{used.label}, {used.kind}"


def variants() -> list[str]:
    """Names for select(): all working devices."""
    return [found.label for found in choice.working_devices()]


def get_webgpu_info() -> dict[str, Any]:
    """Whether WebGPU runs here, why not, all devices, and which one is used and why.

    A device that does not work has a "reason".
    """
    return choice.information("wgpu", "__version__", "devices", _devices)


def _devices() -> list[dict[str, Any]]:
    return [_describe(found) for found in devices.find_devices()]


def _describe(found: Device) -> dict[str, Any]:
    info, limits = found.adapter.info, found.adapter.limits
    return {
        "label": found.label,
        "name": found.name,
        "type": found.kind,
        "driver": info["description"],
        "buffer_bytes": limits["max-buffer-size"],
        "binding_bytes": limits["max-storage-buffer-binding-size"],
        "reason": choice.why_not(found),
    }


def device_infos() -> list[dict[str, Any]]:
    """The working devices, with the fields of `airllm.backends.DeviceInfo`.

    WebGPU does not report device memory. For a device that shares host memory, the memory is the host's; for
    one with dedicated memory, `total_memory` is its largest buffer size.
    """
    return [_facts(found) for found in choice.working_devices()]


def _facts(found: Device) -> dict[str, Any]:
    from airllm.backends.devices import host_memory

    limits, shares = found.adapter.limits, found.kind != "GPU"
    total, free = host_memory() if shares else (limits["max-buffer-size"], None)
    return {
        "index": found.index,
        "name": found.name,
        "total_memory": total,
        "free_memory": free,
        "unified_memory": shares,
        "max_shared_memory": limits["max-compute-workgroup-storage-size"],
    }
