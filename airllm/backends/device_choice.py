"""The one of a backend's devices that is used: chosen once, by a name or as the best one."""

import glob
import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar


class Chosen(Protocol):
    """What a choice asks of a device: a line that names it alone, and "CPU" if it is one."""

    @property
    def label(self) -> str: ...

    @property
    def kind(self) -> str: ...


D = TypeVar("D", bound=Chosen)


@dataclass(eq=False)
class DeviceChoice(Generic[D]):
    """The choice among the devices of one backend, which errors call `title`.

    `found` gives every device, or raises what says why there is none. `fitting` are those that a name may
    mean, of which the one that sorts last by `rank` is taken, as it is of all where nothing is named. A name
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
    configured: Callable[[], tuple[str, str]] = lambda: ("", "default")
    _choice: tuple[D, str] | None = field(default=None, init=False)
    _choosing: threading.Lock = field(default_factory=threading.Lock, init=False)
    _of_thread: threading.local = field(default_factory=threading.local, init=False)

    def in_use(self) -> D:
        """The device that NumPy arrays are computed on: this thread's, else the one that is chosen once."""
        return getattr(self._of_thread, "device", None) or (self._choice or self._choose())[0]

    def chosen_by(self) -> str:
        """What chose it: "select()", a variable of the environment, a key of a file, or "default"."""
        return (self._choice or self._choose())[1]

    def select(self, name: str | None) -> None:
        """Use this device from now on, named as in the environment or by variants(); None: as configured.

        Raises ValueError, naming the known ones, if there is no such device.
        """
        self._choice = (self._named(name, "select()"), "select()") if name is not None else None

    def use_device(self, index: int | None) -> None:
        """In this thread, use the device of this index in `device_infos()`; None: that of all others."""
        self._of_thread.device = None if index is None else self.found()[index]

    def only_when_asked(self) -> str:
        """Why an automatic order passes it over: no GPU. Starts no driver where there can be none."""
        remedy = f"ask for {self.title.lower()} by name to use it"
        cpu_only = f"{self.title} has only CPU devices here, on which cpp is faster; {remedy}"
        if sys.platform == "linux" and not any(map(glob.glob, self.nodes)):
            return cpu_only
        try:
            return cpu_only if self.in_use().kind == "CPU" else ""
        except (ImportError, RuntimeError, ValueError):
            return ""  # device() says why

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
            info["reason"] = str(error).strip() or type(error).__name__
        return info

    def _choose(self) -> tuple[D, str]:
        with self._choosing:
            if self._choice is None:
                named = os.environ.get(self.variable, "").strip()
                wanted, source = (named, self.variable) if named else self.configured()
                device = self._named(wanted, source) if wanted else max(self.found(), key=self.rank)
                self._choice = device, source
            return self._choice

    def _named(self, wanted: str, source: str) -> D:
        devices = self.found()
        fitting = self.fitting(wanted, devices)
        if not fitting:
            known = "; ".join(device.label for device in devices)
            raise ValueError(
                f"{source}: unknown {self.title} device {wanted!r}, expected an index or a part of: {known}"
            )
        return max(fitting, key=self.rank)
