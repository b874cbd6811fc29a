"""Reliable timing: many repetitions, medians, and alternating sides in a comparison.

Two libraries in one process disturb each other: the threads of one spin for some milliseconds after its call
returns, on cores that the other needs. So the sides run alternately in short blocks, many times, with a pause
before each block in which the spinning ends. The first call of each block is not counted. A slow second of
the machine then affects both sides.
"""

from __future__ import annotations

import contextlib
import gc
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from airllm import __version__
from airllm.backends import config_schema
from airllm.backends.devices import cpu_name, host_memory, usable_cores

ROUNDS = 7
PAUSE = 0.01
AFTER_BLAS = 0.15  # seconds: the pause after NumPy's matrix products, whose threads spin for 2^28 cycles
SHORTEST_SAMPLE = 20e-6  # shorter calls are timed several at a time, since the clock costs about 50 ns
ENDLESS = 5.0  # seconds: for longer calls, warm-up does not matter


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median, quartiles and the `best` sample, with the number of samples and rounds."""

    median: float
    low: float
    high: float
    samples: int
    rounds: int = 1
    best: float = 0.0

    @property
    def spread(self) -> float:
        """Interquartile range as a share of the median."""
        return (self.high - self.low) / self.median

    @classmethod
    def of(cls, seconds: list[float], rounds: int = 1) -> Timing:
        best, low, median, high = map(float, np.percentile(seconds, (0, 25, 50, 75)))
        return cls(median, low, high, len(seconds), rounds, best)


class Budget:
    """A time limit in seconds that several steps share: what one leaves is available to the next."""

    def __init__(self, seconds: float):
        self._end = time.perf_counter() + seconds

    def left(self) -> float:
        """The seconds left; 0 when all are spent."""
        return max(0.0, self._end - time.perf_counter())

    def extend(self, seconds: float) -> None:
        self._end += seconds


def compare(
    calls: Mapping[str, Callable[[], Any]],
    seconds: float = 0.5,
    rounds: int = ROUNDS,
    pause: float = PAUSE,
    within: float = math.inf,
) -> dict[str, Timing]:
    """Time each call, in turns; `seconds` is the approximate total for all samples of one call.

    A call that takes longer than its share of a round still runs once per round. One that takes longer than
    `seconds` runs only in the first three rounds, and one that takes longer than ENDLESS only once. After
    `within` seconds no further round begins. A call that alone takes that long is not repeated: the best of
    its warm-up calls is its only sample.
    """
    budget = Budget(within)
    blocks: dict[str, list[list[float]]] = {name: [] for name in calls}
    once = {name: _warm_up(call) for name, call in calls.items()}
    with _no_garbage_collection():
        for turn in range(rounds):
            if turn and not budget.left():
                break
            for name, call in calls.items():
                if once[name] > min(ENDLESS, within):
                    blocks[name] = [[once[name]]]
                elif turn < 3 or once[name] <= seconds:
                    time.sleep(pause)
                    blocks[name].append(_sample_block(call, once[name], seconds / rounds))
    return {name: Timing.of(sum(each, []), len(each)) for name, each in blocks.items()}


def _warm_up(call: Callable[[], Any]) -> float:
    """Seconds of one call after caches, pools and compiled programs are ready."""
    start = time.perf_counter()
    call()
    if (first := time.perf_counter() - start) > ENDLESS:
        return first
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        if best > 0.1:
            break
    return best


def _sample_block(call: Callable[[], Any], once: float, seconds: float) -> list[float]:
    """Seconds per call of each sample; takes about `seconds`."""
    inner = max(1, round(SHORTEST_SAMPLE / max(once, 1e-9))) if once < SHORTEST_SAMPLE else 1
    repeat, clock = range(inner), time.perf_counter
    if once < seconds:
        call()
    taken = []
    end = clock() + seconds
    while True:
        start = clock()
        for _ in repeat:
            call()
        stop = clock()
        taken.append((stop - start) / inner)
        if stop > end:
            return taken


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# ------------------------------------------------------------------------------------------------ threads


@contextlib.contextmanager
def threads(count: int) -> Iterator[dict[str, int]]:
    """Set the same thread count for everything that is timed; yields the count that each library reports."""
    own, torch = of_processor(), optional("torch")
    with contextlib.ExitStack() as undo:
        used: dict[str, int] = {}
        if torch:
            undo.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(count)
        if pools := optional("threadpoolctl"):
            undo.enter_context(pools.threadpool_limits(count))
            used |= {pool["internal_api"]: pool["num_threads"] for pool in pools.threadpool_info()}
        if own:
            undo.callback(own.set_num_threads, own.num_threads())
            own.set_num_threads(count)
        used |= {"torch": torch.get_num_threads()} if torch else {}
        used |= {own.__name__: own.num_threads()} if own else {}
        yield used


def of_processor() -> ModuleType | None:
    """The module whose kernels are multithreaded on the CPU; None if it is not built."""
    return optional(config_schema.processor_module()) if config_schema.processor_module() else None


def optional(name: str) -> ModuleType | None:
    """The module, or None if it is not installed or cannot be loaded."""
    try:
        return import_module(name)
    except (ImportError, OSError):
        return None


# ------------------------------------------------------------------------------------------------ the machine


@dataclass(frozen=True)
class Bandwidth:
    """This machine's memory bandwidth in GB/s (1e9 bytes): reading, and copying (read + written)."""

    copy: float
    read: float
    how: str


def bandwidth(nbytes: int | None = None, seconds: float = 0.5) -> Bandwidth:
    """Measure with an array far larger than the last-level cache (`nbytes`), which is read, and one half of
    which is copied to the other.

    With the C++ backend, both probes use all threads and non-temporal stores. Without it, they are NumPy's
    copy and sum on one thread, which is slower than most machines' memory. `how` says which.
    """
    from airllm.backends import open_backend

    own = next((open_backend(name).module for name in config_schema.on_processor()), None)
    both = np.ones((2, (nbytes or large_array_bytes()) // 8), np.float32)
    source, target = both
    if own and hasattr(own, "copy") and hasattr(own, "read"):
        calls = {"copy": lambda: own.copy(target, source), "read": lambda: own.read(both.reshape(-1))}
        how = f"{own.__name__}'s copy and read, {own.num_threads()} threads"
    else:
        calls = {"copy": lambda: np.copyto(target, source), "read": lambda: np.max(both)}
        build = config_schema.processor_module()
        how = f"NumPy's copy and max, one thread: build {build} for the machine's real figure"
    taken = compare(calls, seconds)
    copied, read = (both.nbytes / taken[name].median for name in ("copy", "read"))
    return Bandwidth(copied / 1e9, read / 1e9, f"{how}, an array of {both.nbytes >> 20} MB")


def large_array_bytes(caches: float = 4) -> int:
    """So many times the last-level cache, at least 64 MB, at most a sixteenth of this process's memory."""
    return min(max(int(caches * last_cache_bytes()), 64 << 20), max(host_memory()[0] // 16, 16 << 20))


def last_cache_bytes() -> int:
    """Size of the largest cache that the kernel lists; 32 MB if it lists none."""
    found = [
        _bytes(path.read_text()) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(found, default=32 << 20)


def _bytes(text: str) -> int:
    units = {"K": 10, "M": 20, "G": 30}
    text = text.strip()
    return int(text[:-1]) << units[text[-1]] if text[-1:] in units else int(text or 0)


def machine() -> dict[str, Any]:
    """The machine's description that figures are reported with, as plain values for JSON."""
    own = of_processor()
    info = own.get_optimization_info() if own else {}
    packages = [package for each in config_schema.all_declarations().values() for package in each.packages]
    return {
        "cpu": cpu_name(),
        "isa": str(info.get("simd_level", "")) or f"{config_schema.processor_module()} is not built",
        "cores": usable_cores(),
        "last_cache_mb": round(last_cache_bytes() / (1 << 20), 1),
        "memory_gb": round(host_memory()[0] / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "compiler": str(info.get("compiler", "")),
        "python": sys.version.split()[0],
        "versions": {"airllm": __version__}
        | {name: v for name in ("numpy", "torch", *packages) if (v := _version(name))},
    }


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
