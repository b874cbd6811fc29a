"""Information about OpenCL on this machine, for users."""

import time
import warnings
from collections.abc import Iterator
from typing import Any

from airllm.backends.gpu.kernel_text import FAMILIES, FORMS, text
from tensor_ops_opencl import devices
from tensor_ops_opencl.devices import Device
from tensor_ops_opencl.engine import OPTIONS, why_not_built
from tensor_ops_opencl.selection import choice


def device() -> str:
    """The device in use, in one line; RuntimeError or ImportError with the reason if there is none."""
    used = choice.in_use()
    return f"{used.label}, {used.kind}, {used.handle.max_compute_units} compute units"


def variants() -> list[str]:
    """Names for select(): all working devices, and CPU devices a second time with the GPU kernels."""
    return [form.label for found in choice.working_devices() for form in devices.forms(found)]


def get_opencl_info() -> dict[str, Any]:
    """Whether OpenCL runs here, why not, all platforms and devices, and which device is used and why.

    A device that does not work has a "reason".
    """
    return choice.information("pyopencl", "VERSION_TEXT", "platforms", _platforms)


def _platforms() -> list[dict[str, Any]]:
    platforms: dict[int, dict[str, Any]] = {}
    for found in devices.find_devices():
        handle = found.handle.platform
        platform = platforms.setdefault(
            found.platform,
            {"name": handle.name, "version": handle.version, "vendor": handle.vendor, "devices": []},
        )
        platform["devices"].append(_describe(found))
    return list(platforms.values())


def _describe(found: Device) -> dict[str, Any]:
    handle = found.handle
    return {
        "label": found.label,
        "name": handle.name.strip(),
        "type": found.kind,
        "version": handle.version,
        "driver": handle.driver_version,
        "memory_bytes": handle.global_mem_size,
        "compute_units": handle.max_compute_units,
        "work_group_size": handle.max_work_group_size,
        "kernels": found.form,
        "reason": choice.why_not(found),
    }


def device_infos() -> list[dict[str, Any]]:
    """The working devices, with the fields of `airllm.backends.DeviceInfo`; free memory is not reported."""
    every = devices.find_devices()
    return [
        {
            "index": every.index(found),
            "name": found.handle.name.strip(),
            "total_memory": found.handle.global_mem_size,
            "unified_memory": bool(found.handle.host_unified_memory),
            "compute_units": found.handle.max_compute_units,
            "max_shared_memory": found.handle.local_mem_size,
        }
        for found in choice.working_devices()
    ]


def build_report() -> Iterator[dict[str, Any]]:
    """Compile all kernels of every form for every device; yield for each whether it worked, and the log.

    "asked": the device was named. "reason": one line that says why it failed. Raises ImportError without
    pyopencl, RuntimeError without a device, ValueError if the named device does not exist.
    """
    asked = choice.requested_device()
    for found in devices.find_devices():
        for form in FORMS:
            yield _build(found, form) | {"asked": found in asked}


def _build(found: Device, form: str) -> dict[str, Any]:
    """Compile one form in a new context, without pyopencl's cache."""
    import pyopencl as cl

    report: dict[str, Any] = {
        "label": found.label,
        "device": found.handle.name.strip(),
        "platform": found.handle.platform.name,
        "version": found.handle.platform.version,
        "form": form,
        "kernels": [],
        "ok": False,
        "log": "",
        "reason": "",
    }
    start = time.perf_counter()
    try:
        context = cl.Context([found.handle])
        programs = [_compile(context, text(form, family)) for family in FAMILIES]
        kernels = [kernel.function_name for program in programs for kernel in program.all_kernels()]
        logs = [program.get_build_info(found.handle, cl.program_build_info.LOG) for program in programs]
        report.update(kernels=sorted(kernels), log="\n".join(logs).strip(), ok=True)
    except cl.Error as error:
        report.update(log=str(error).strip(), reason=why_not_built(found.handle, error))
    if report["ok"] and (why := choice.why_not(found)):  # it compiles but does not work
        report.update(ok=False, log=why, reason=why)
    report["seconds"] = time.perf_counter() - start
    return report


def _compile(context: Any, source: str) -> Any:
    import pyopencl as cl

    no_cache: Any = False
    with warnings.catch_warnings():  # the report has the log
        warnings.simplefilter("ignore", cl.CompilerWarning)
        return cl.Program(context, source).build(options=list(OPTIONS), cache_dir=no_cache)
