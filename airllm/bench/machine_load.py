"""Measure the load of other programs: how many of this process's cores they use during a benchmark."""

from __future__ import annotations

import os
import time
from pathlib import Path

from airllm.backends.devices import usable_cores

STAT = Path("/proc/stat")
SHARE = 0.25  # of the cores: above this use by others, times are doubted
LOOK = 0.3  # seconds
# The idle columns of a CPU's line in /proc/stat; the rest is work, including that of other virtual machines.
IDLE = (3, 4)
WORK = slice(0, 8)


class OtherPrograms:
    """The load of other programs from now on. Children of this process count as others until they end."""

    def __init__(self) -> None:
        self._begun, self._worked, self._own = time.monotonic(), _total_cpu_seconds(), _own_cpu_seconds()
        self._load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0

    def cores(self) -> float:
        """Average number of cores used by others; if the system does not report it, the initial load."""
        seconds = time.monotonic() - self._begun
        if not self._worked or seconds <= 0:
            return self._load
        return max(0.0, (_total_cpu_seconds() - self._worked - (_own_cpu_seconds() - self._own)) / seconds)


def _total_cpu_seconds() -> float:
    """CPU seconds of all programs on the cores that this process may use; 0 if not reported."""
    try:
        lines = STAT.read_text().splitlines()
    except OSError:
        return 0.0
    mine = {f"cpu{i}" for i in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    ticks = 0
    for name, *counts in map(str.split, lines):
        if name in mine:
            ticks += sum(int(n) for i, n in enumerate(counts[WORK]) if i not in IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def busy(taken: float) -> str:
    """A warning if other programs take many cores (`taken`), else ""."""
    cores = usable_cores()
    if taken <= SHARE * cores:
        return ""
    return f"the machine is busy: other programs take {taken:.1f} of its {cores} cores, so times may not hold"


def busy_now() -> str:
    """`busy` for the present load, measured for 0.3 seconds."""
    others = OtherPrograms()
    time.sleep(LOOK)
    return busy(others.cores())
