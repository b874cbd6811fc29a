"""What other programs do to a measurement: how many of this process's cores they keep busy meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

from airllm.backends.devices import usable_cores

STAT = Path("/proc/stat")
SHARE = 0.25  # of the cores: what others may take before times are doubted
LOOK = 0.3  # seconds
# Of a processor's line in /proc/stat, what is idle time; the rest is work, also that of other machines on it.
IDLE = (3, 4)
WORK = slice(0, 8)


class OtherPrograms:
    """They and their load from now on. This process's own children count as others until they have ended."""

    def __init__(self) -> None:
        self._begun, self._worked, self._own = time.monotonic(), _total_cpu_seconds(), _own_cpu_seconds()
        self._load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0

    def cores(self) -> float:
        """So many cores they have kept busy on average; where the system does not tell, the load at first."""
        seconds = time.monotonic() - self._begun
        if not self._worked or seconds <= 0:
            return self._load
        return max(0.0, (_total_cpu_seconds() - self._worked - (_own_cpu_seconds() - self._own)) / seconds)


def _total_cpu_seconds() -> float:
    """Seconds of work of the cores that this process may use, by all; 0 where that is not told."""
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
    """What it means that other programs take so many cores; "" if they leave this one alone."""
    cores = usable_cores()
    if taken <= SHARE * cores:
        return ""
    return f"the machine is busy: other programs take {taken:.1f} of its {cores} cores, so times may not hold"


def busy_now() -> str:
    """The same of this moment, which it looks at for a third of a second."""
    others = OtherPrograms()
    time.sleep(LOOK)
    return busy(others.cores())
