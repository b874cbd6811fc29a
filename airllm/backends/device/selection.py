"""The one of a backend's devices that is used: chosen once, by a name or as the best one that computes."""

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
    """What a choice asks of a device: a line that names it alone, and "CPU" if it is one."""

    @property
    def label(self) -> str: ...

    @property
    def kind(self) -> str: ...


D = TypeVar("D", bound=ChosenDevice)


@dataclass(eq=False)
class DeviceChoice(Generic[D]):
    """The choice among the devices of one backend, which errors call `title`.

    `found` gives every device, or raises what says why there is none. `fitting` are those that a name may
    mean. Of these, and of all where nothing is named, the one that sorts last by `rank` is taken among those
    that compute: `silu` is that op on a device, which compiles and runs it, or raises why it does not. A name
    comes from select(), from `variable` of the environment, or from `configured`, which gives it with its
    source, ("", "default") where there is none. `nodes` are patterns of files, of which Linux has one where
    there is a GPU.
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
        """The device that NumPy arrays are computed on: this thread's, else the one that is chosen once."""
        return getattr(self._of_thread, "device", None) or (self._choice or self._choose())[0]

    def chosen_by(self) -> str:
        """What chose it: "select()", a variable of the environment, a key of a file, or "default"."""
        return (self._choice or self._choose())[1]

    def select(self, name: str | None) -> None:
        """Use this device from now on, named as in the environment or by variants(); None: as configured.

        Raises ValueError, naming the known ones, if there is no such device, RuntimeError with the reason if
        it does not compute.
        """
        self._choice = (self._find_named(name, "select()"), "select()") if name is not None else None

    def why_not(self, device: D) -> str:
        """Why a device does not compute, in a line; "" if it does. Tried once in a process."""
        with self._choosing:
            if device not in self._reasons:
                self._reasons[device] = self._try_device(device)
            return self._reasons[device]

    def try_again(self) -> None:
        """Forgets why devices did not compute: what was short of memory then may not be now."""
        with self._choosing:
            self._reasons = {device: why for device, why in self._reasons.items() if not why}

    def _try_device(self, device: D) -> str:
        try:
            proof.prove(lambda x: self.silu(device, x))
        except Exception as error:  # a driver may raise anything at all
            return reasons.reason(error)
        return ""

    def working_devices(self) -> list[D]:
        """The devices that compute; RuntimeError with the reason of each if none does."""
        devices = self.found()
        self._best(devices)
        return [device for device in devices if not self.why_not(device)]

    def unusable(self) -> dict[str, str]:
        """The devices that do not compute, by label, and why."""
        return {device.label: why for device in self.found() if (why := self.why_not(device))}

    def requested_device(self) -> Sequence[D]:
        """The devices that a variable of the environment or a file may mean, none if they name nothing."""
        requested, source = self._requested()
        return self._match_devices(requested, source) if requested else ()

    def use_device(self, index: int | None) -> None:
        """In this thread, use the device of this index in `device_infos()`; None: that of all others."""
        self._of_thread.device = None if index is None else self.found()[index]

    def only_when_asked(self) -> str:
        """Why an automatic order passes it over: no GPU. Starts no driver where there can be none."""
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

        With the version of a package, an attribute of it, and under `listed` what is `described`.
        """
        info: dict[str, Any] = {"available": False, "reason": "", listed: [], "device": "", "chosen_by": ""}
        try:
            info[package] = getattr(importlib.import_module(package), version)
            info[listed] = described()
            info["device"], info["chosen_by"] = self.in_use().label, self.chosen_by()
            info["available"] = True
        except Exception as error:  # a driver may raise anything at all
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
        """The name of the device to use, "" for the best one, and what says so."""
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
        """The one that is used of some devices: the best that computes. RuntimeError if none does."""
        in_order = sorted(devices, key=self.rank, reverse=True)
        if works := next((device for device in in_order if not self.why_not(device)), None):
            return works
        refused = "; ".join(f"{device.label} cannot be used: {self.why_not(device)}" for device in in_order)
        raise RuntimeError(f"{asked}{refused}")
