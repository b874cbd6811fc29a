"""Reports on which backend runs and why, for people and programs."""

from __future__ import annotations

from typing import Any

from airllm.backends import routing
from airllm.backends.config import Config
from airllm.backends.devices import DeviceInfo, devices_of
from airllm.backends.registry import all_names, available, choice, definitions, open_backend


def get_backend_info(name: str | None = None) -> dict[str, Any]:
    """The backend in use and why, and for each backend that does not run, the reason. Opens every backend.

    "choices" has for each op one line per size that `airllm tune` has measured. "tuning" describes its file:
    whether it is "used" and why, and what has "changed" on this machine since.
    With `name`, describes that backend only: whether it is available, the reason if not, its device_count and
    devices, and of the first device the compute_units, max_memory, max_shared_memory (bytes) and
    compute_capability (90 for 9.0).
    """
    if name is not None:
        return _describe_backend(name)
    now = choice()
    return {
        "backend": now.backend.name,
        "config": now.config.as_dict(),
        "available_backends": available(),
        "device": now.backend.device,
        "devices": {name: open_backend(name).device for name in available()},
        "unavailable": {
            name: open_backend(name).why_not for name in all_names() if open_backend(name).why_not
        },
        "passed_over": dict(now.passed_over),
        "config_source": now.config.source,
        "tuning": _tuning(),
        "choices": {op: _choices(op) for op in definitions},
    }


def _describe_backend(name: str) -> dict:
    """The result of `get_backend_info(name)`: whether the backend runs, why not, and its devices.

    `compute_capability` is an integer, 90 for 9.0; 0 if the device has none.
    """
    backend = open_backend(name)
    devices = [] if backend.why_not else devices_of(backend.module)
    first = devices[0] if devices else DeviceInfo(0, "", 0)
    return {
        "name": backend.name,
        "available": not backend.why_not,
        "reason": backend.why_not,
        "device_count": len(devices),
        "compute_units": first.compute_units or 0,
        "max_memory": first.total_memory,
        "max_shared_memory": first.max_shared_memory or 0,
        "compute_capability": int((first.compute_capability or "0").replace(".", "")),
        "devices": devices,
    }


def _tuning() -> dict[str, Any]:
    table = choice().table
    if table is None:
        return {"used": False, "why": choice().why, "changed": [], "unknown_ops": []}
    devices = {name: open_backend(name).device for name in available()}
    unknown = [op for op in table.tuning.ops if op not in definitions]
    changed = table.tuning.machine.changes(devices)
    return {"used": True, "why": choice().why, "changed": changed, "unknown_ops": unknown}


def _choices(op: str) -> list[str]:
    now = choice()
    lines = now.table.points(op) if now.table is not None else []
    return lines or [f"{op}: {now.backend.name}: {routing.UNMEASURED if now.table is not None else now.why}"]


def explain(op: str, *arrays: Any, dtype: str | None = None) -> str:
    """Which backend runs a call of `op` and why: "silu (1, 4096): cpp, 4 us; opencl 180 us".

    `arrays` are the call's first arrays, or their shapes. `dtype` defaults to that of the arrays, or float32
    for shapes. ValueError for an unknown op, or for fewer than two arrays (one if the op has one).
    """
    if op not in definitions:
        raise ValueError(f"explain: unknown op {op!r}, expected one of: {', '.join(definitions)}")
    now, shapes = choice(), [tuple(getattr(array, "shape", array)) for array in arrays]
    own = next((str(a.dtype) for a in arrays if hasattr(a, "dtype") and a.dtype.kind not in "iu"), "float32")
    if now.table is not None:
        return now.table.explain(op, shapes, dtype or own)
    return f"{routing.case(op, shapes, dtype or own)}: {now.backend.name}: {now.why}"


def print_backend_info() -> None:
    """Print which backend runs, which others could, why the rest do not, and the state of the tuning."""
    info = get_backend_info()
    print(f"Active backend: {info['backend']} ({info['device']})")
    print(f"Configuration:  {_describe_config(choice().config)}")
    for name in all_names():
        state = info["unavailable"].get(name)
        state = f"not available: {state}" if state else f"available: {info['devices'][name]}"
        note = info["passed_over"].get(name, "")
        note = f"\n             passed over: {note}" if note and name not in info["unavailable"] else ""
        print(f"  {name:<10} {state}{note}")
    print(f"Choice by size: {info['tuning']['why']}")
    for line in _describe_routing():
        print(f"  {line}")
    for line in info["tuning"]["changed"]:
        print(f"  changed since it was measured (`airllm tune` measures again): {line}")


def _describe_config(config: Config) -> str:
    """The backend setting in force and its source."""
    order = ", ".join(config.order)
    if config.force_backend:
        wish = f"{config.force_backend} and no other"
    elif config.preferred_backend == "auto":
        wish = f"the first that runs of {order}"
    else:
        wish = f"{config.preferred_backend}; if it cannot run, the first of {order}"
    if config.order != config.backend_priority:
        wish += f"; {', '.join(config.backend_priority)}, as shipped, stands for all"
    place = config.source if config.path is None or config.source == "AIRLLM_BACKEND" else config.path
    return f"{wish} ({place})"


def _describe_routing() -> list[str]:
    """One line for each op and dtype that runs on another backend than the usual one at some size."""
    table = choice().table
    return [] if table is None else [line for op in table.tuning.ops for line in table.summary(op)]
