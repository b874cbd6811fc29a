"""The devices of backends, and the memory of this machine."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

# Family, models and cores, as Linux tells them apart (arch/x86/kernel/cpu/amd.c, asm/intel-family.h). Intel's
# model 85 is three cores, which only their steppings tell apart.
CORES = (
    (6, (0x6A, 0x6C), "Ice Lake"),
    (6, (0x8F,), "Sapphire Rapids"),
    (6, (0xAD, 0xAE), "Granite Rapids"),
    (6, (0xAF,), "Sierra Forest"),
    (6, (0xCF,), "Emerald Rapids"),
    (23, range(0x30), "Zen"),
    (23, range(0x30, 0x100), "Zen 2"),
    (25, range(0x10), "Zen 3"),
    (25, range(0x10, 0x20), "Zen 4"),
    (25, range(0x20, 0x60), "Zen 3"),
    (25, range(0x60, 0xB0), "Zen 4"),
    (26, range(0x50), "Zen 5"),
    (26, range(0x60, 0x80), "Zen 5"),
)


@dataclass(frozen=True)
class DeviceInfo:
    """A device of a backend. Memory is in bytes; None if the device or its driver does not report it.

    `unified_memory`: the device shares host memory. `compute_capability` is NVIDIA's, such as "9.0".
    `max_shared_memory`: the memory that a GPU thread block shares.
    """

    index: int
    name: str
    total_memory: int
    free_memory: int | None = None
    compute_capability: str | None = None
    unified_memory: bool = False
    compute_units: int | None = None
    max_shared_memory: int | None = None


def devices_of(module: ModuleType | None) -> list[DeviceInfo]:
    """The devices of a backend's module, from its `device_infos()`: a dictionary per device, with an `index`
    if that is not its position. The host if it has no such function. Raises what the module raises.
    """
    device_infos = getattr(module, "device_infos", None)
    if device_infos is None:
        return [host_device()]
    return [DeviceInfo(**{"index": index} | facts) for index, facts in enumerate(device_infos())]


def host_device() -> DeviceInfo:
    """This machine's CPU and memory, or the part of them that this process may use."""
    total, free = host_memory()
    return DeviceInfo(0, cpu_name(), total, free, unified_memory=True, compute_units=usable_cores())


def usable_cores() -> int:
    """Number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def cpu_name() -> str:
    """The CPU's model name; with its core, or its family and model, where a virtual machine's name of it has
    no number ("AMD EPYC"): what was measured on one of them does not hold for another.
    """
    facts: dict[str, str] = {}
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    name = facts.get("model name") or facts.get("Model") or _known_name()
    if name and "cpu family" in facts and not re.search(r"\d", name):
        name += " " + core_name(int(facts["cpu family"]), int(facts["model"]))
    return name or platform.processor() or platform.machine()


def core_name(family: int, model: int) -> str:
    """The maker's name of the cores of these numbers, else the numbers."""
    for of_family, models, core in CORES:
        if family == of_family and model in models:
            return core
    return f"family {family} model {model}"


def _known_name() -> str:
    """The name from py-cpuinfo, if the kernel reports only numbers, as for most ARM CPUs."""
    import cpuinfo

    return cpuinfo.get_cpu_info().get("brand_raw", "")


def host_memory() -> tuple[int, int | None]:
    """Total and free memory in bytes: of the machine, or of this process's control group if that has less."""
    known = dict(line.split(":", 1) for line in _lines(Path("/proc/meminfo")) if ":" in line)
    if "MemTotal" not in known:
        if sys.platform == "win32":
            return _windows_memory()
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), None
    total, free = (int(known[key].split()[0]) << 10 for key in ("MemTotal", "MemAvailable"))
    for limit, used in _group_limits():
        total, free = min(total, limit), min(free, max(limit - used, 0))
    return total, free


def _windows_memory() -> tuple[int, int]:
    """Total and free memory by GlobalMemoryStatusEx: a structure of 64 bytes, which begins with its size."""
    import ctypes

    status = (ctypes.c_uint64 * 8)(64)
    ctypes.windll.kernel32.GlobalMemoryStatusEx(status)  # type: ignore[attr-defined,unused-ignore]
    return int(status[1]), int(status[2])


# The files of a control group's memory controller (limit, usage), for versions 2 and 1.
_GROUP_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def _group_limits(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[tuple[int, int]]:
    """(limit, used) of this process's control groups, from its own up to the root."""
    for line in _lines(own):
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        inner = top / name.strip().lstrip("/")
        for folder in (inner, *inner.parents):
            yield from _limit_in(folder)
            if folder == top:
                break


def _limit_in(folder: Path) -> Iterator[tuple[int, int]]:
    for limit, used in _GROUP_FILES:
        values = ["".join(_lines(folder / name)).strip() for name in (limit, used)]
        if all(value.isdecimal() for value in values):  # "max": no limit
            yield int(values[0]), int(values[1]) - _reclaimable(folder)


def _reclaimable(folder: Path) -> int:
    """Bytes of the page cache in the group's memory that the kernel can reclaim."""
    stat = dict(line.split() for line in _lines(folder / "memory.stat"))
    return int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
