"""Select a backend's device once: by name, or the best one that works."""

import glob
import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from airllm.backends import proof, reasons
from airllm.backends.config_schema import on_processor


class ChosenDevice(Protocol):
    """What a device must have: `label`, a unique line, and `kind`, "CPU" for a CPU."""

    @property
    def label(self) -> str: ...

    @property
    def kind(self) -> str: ...


D = TypeVar("D", bound=ChosenDevice)


@dataclass(eq=False)
class DeviceChoice(Generic[D]):
    """The choice among the devices of one backend, whose name in errors is `title`.

    `found` returns every device, or raises the reason why there is none. `fitting` returns those that a name
    matches. Of these, or of all devices without a name, the choice is the one with the highest `rank` that
    works: `silu` compiles and runs that op on a device, or raises the reason why it cannot. A name comes from
    select(), from the environment variable `variable`, or from `configured`, which returns a name and its
    source, ("", "default") if there is none. `nodes` are file patterns; on Linux, a file matches one if there
    is a GPU.
    """

    title: str
    variable: str
    nodes: Sequence[str]
    found: Callable[[], Sequence[D]]
    fitting: Callable[[str, Sequence[D]], Sequence[D]]
    rank: Callable[[D], Any]
    silu: Callable[[D, np.ndarray], np.ndarray]
    configured: Callable[[], tuple[str, str]] = lambda: ("", "default")
    _choice: tuple[D, str] | None = field(default=None, init=False)
    _choosing: threading.RLock = field(default_factory=threading.RLock, init=False)
    _reasons: dict[D, str] = field(default_factory=dict, init=False)
    _of_thread: threading.local = field(default_factory=threading.local, init=False)

    def in_use(self) -> D:
        """The device for NumPy arrays: this thread's, else the one chosen for the process."""
        return getattr(self._of_thread, "device", None) or (self._choice or self._choose())[0]

    def chosen_by(self) -> str:
        """The source of the choice: "select()", an environment variable, a key of a file, or "default"."""
        return (self._choice or self._choose())[1]

    def select(self, name: str | None) -> None:
        """Use this device from now on, named as in the environment or by variants(); None: as configured.

        Raises ValueError that lists the known devices if there is no such device, RuntimeError with the
        reason if it does not work.
        """
        self._choice = (self._find_named(name, "select()"), "select()") if name is not None else None

    def why_not(self, device: D) -> str:
        """One line that says why a device does not work; "" if it does. Tried once per process."""
        with self._choosing:
            if device not in self._reasons:
                self._reasons[device] = self._try_device(device)
            return self._reasons[device]

    def try_again(self) -> None:
        """Retry devices that did not work: one that was short of memory may have enough now."""
        with self._choosing:
            self._reasons = {device: why for device, why in self._reasons.items() if not why}

    def _try_device(self, device: D) -> str:
        try:
            proof.prove(lambda x: self.silu(device, x))
        except Exception as error:  # a driver may raise any exception
            return reasons.reason(error)
        return ""

    def working_devices(self) -> list[D]:
        """The devices that work; RuntimeError with the reason of each if none does."""
        devices = self.found()
        self._best(devices)
        return [device for device in devices if not self.why_not(device)]

    def unusable(self) -> dict[str, str]:
        """The devices that do not work, by label, with the reasons."""
        return {device.label: why for device in self.found() if (why := self.why_not(device))}

    def requested_device(self) -> Sequence[D]:
        """The devices that match the name in the environment or a file; empty if none is named."""
        requested, source = self._requested()
        return self._match_devices(requested, source) if requested else ()

    def use_device(self, index: int | None) -> None:
        """In this thread, use the device of this index in `device_infos()`; None: that of the process."""
        self._of_thread.device = None if index is None else self.found()[index]

    def only_when_asked(self) -> str:
        """Why the automatic order skips the backend: no GPU. Starts no driver if there cannot be a GPU."""
        remedy = f"ask for {self.title.lower()} by name to use it"
        cpu_only = f"{self.title} has only CPU devices here, on which {on_processor()[0]} is faster; {remedy}"
        if sys.platform == "linux" and not any(map(glob.glob, self.nodes)):
            return cpu_only
        try:
            if self.in_use().kind != "CPU":
                return ""
            broken = self.unusable()
        except (ImportError, RuntimeError, ValueError):
            return ""  # device() says why
        return "; ".join([cpu_only, *(f"{label} cannot be used: {why}" for label, why in broken.items())])

    def information(
        self, package: str, version: str, listed: str, described: Callable[[], list]
    ) -> dict[str, Any]:
        """Whether the backend runs here, why not, and which device is used and why.

        Also the version of `package` (its attribute `version`) and, under `listed`, what `described` returns.
        """
        info: dict[str, Any] = {"available": False, "reason": "", listed: [], "device": "", "chosen_by": ""}
        try:
            info[package] = getattr(importlib.import_module(package), version)
            info[listed] = described()
            info["device"], info["chosen_by"] = self.in_use().label, self.chosen_by()
            info["available"] = True
        except Exception as error:  # a driver may raise any exception
            info["reason"] = reasons.reason(error)
        return info

    def _choose(self) -> tuple[D, str]:
        with self._choosing:
            if self._choice is None:
                requested, source = self._requested()
                device = self._find_named(requested, source) if requested else self._best(self.found())
                self._choice = device, source
            return self._choice

    def _requested(self) -> tuple[str, str]:
        """The name of the device to use, "" for the best one, and the source of the name."""
        named = os.environ.get(self.variable, "").strip()
        return (named, self.variable) if named else self.configured()

    def _find_named(self, requested: str, source: str) -> D:
        return self._best(self._match_devices(requested, source), f"{source}={requested}: ")

    def _match_devices(self, requested: str, source: str) -> Sequence[D]:
        devices = self.found()
        if fitting := self.fitting(requested, devices):
            return fitting
        known = "; ".join(device.label for device in devices)
        raise ValueError(
            f"{source}: unknown {self.title} device {requested!r}, expected an index or a part of: {known}"
        )

    def _best(self, devices: Sequence[D], asked: str = "") -> D:
        """The device with the highest rank that works. RuntimeError if none does."""
        in_order = sorted(devices, key=self.rank, reverse=True)
        if works := next((device for device in in_order if not self.why_not(device)), None):
            return works
        refused = "; ".join(f"{device.label} cannot be used: {self.why_not(device)}" for device in in_order)
        raise RuntimeError(f"{asked}{refused}")
