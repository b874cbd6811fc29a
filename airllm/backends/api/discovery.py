"""List the backends and their devices, and choose one."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airllm.backends import config, registry
from airllm.backends.config_schema import absent_names, label
from airllm.backends.devices import DeviceInfo, devices_of


class BackendUnavailable(ImportError, ValueError):
    """A named backend cannot run here; the message has the reason and the remedies."""


class BackendPreference(enum.Enum):
    """A preference for `init_backend`: `Cpu` must run; the others fall back to the automatic order."""

    Auto = "auto"
    Cpu = "cpp"
    Cuda = "cuda"
    Metal = "metal"
    Rocm = "rocm"
    OpenCL = "opencl"
    WebGPU = "webgpu"


@dataclass(frozen=True)
class DiscoveredBackend:
    """A backend and its devices, or the `reason` why it has none; `unusable` says why other devices fail."""

    name: str
    devices: tuple[DeviceInfo, ...] = ()
    reason: str = ""
    unusable: tuple[str, ...] = ()

    @property
    def available(self) -> bool:
        return not self.reason

    @property
    def title(self) -> str:
        """The backend's title and hardware, such as "CPU (CPU)"."""
        return "{} ({})".format(*label(self.name))


def discover_backends() -> list[DiscoveredBackend]:
    """Every known backend with its working devices, or the reason why it has none. Opens each once."""
    return [_discover_backend(name) for name in (*config.known_names(), *absent_names())]


def _discover_backend(name: str) -> DiscoveredBackend:
    opened = registry.open_backend(name)
    if opened.why_not:
        return DiscoveredBackend(name, reason=opened.why_not)
    try:
        devices = tuple(devices_of(opened.module))
        broken: dict[str, str] = getattr(opened.module, "unusable", dict)()
    except Exception as error:  # a driver may raise any exception
        return DiscoveredBackend(name, reason=registry.reason_of(name, error))
    unusable = tuple(f"{label} cannot be used: {why}" for label, why in broken.items())
    return DiscoveredBackend(name, devices, "" if devices else "it has no device here", unusable)


def get_available_backends() -> list[str]:
    """Names of the backends that run here, in the configured order. Opens every backend."""
    return registry.available()


def is_backend_available(name: str) -> bool:
    """Open this backend and return whether it runs. ValueError that lists the known ones if it is unknown."""
    return not registry.open_backend(name).why_not


def get_default_backend() -> str:
    """The backend that runs ops if a call names none."""
    return registry.get_backend()


def set_default_backend(name: str) -> None:
    """Run ops on this backend if a call names none. BackendUnavailable if it cannot run here."""
    if not config.is_auto(name):
        _require_backend(name)
    registry.set_backend(name)


def best_available_backend() -> str:
    """The first backend of the automatic order that runs, even if another one is in use."""
    return registry.best().name


def list_backends(verbose: bool = False) -> list[str]:
    """Names of the backends that run here. If `verbose`, also print every known backend with its names and
    devices.
    """
    if verbose:
        _print(line for each in discover_backends() for line in _lines(each, _names(each)))
    return get_available_backends()


def print_backend_summary() -> None:
    """Print every backend with its devices and their memory, or why it does not run; then the best one."""
    print("=== Available Backends ===")
    _print(line for each in discover_backends() for line in _lines(each, each.title))
    print()
    print(f"Recommended backend: {label(best_available_backend())[0]}")


def _print(lines: Iterable[str]) -> None:
    """Print; if the encoding lacks characters (POSIX locale), use + and - as marks and ? for the rest."""
    text, encoding = "\n".join(lines), sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("✓", "+").replace("✗", "-").encode(encoding, "replace").decode(encoding)
    print(text)


def _names(found: DiscoveredBackend) -> str:
    return f"{', '.join(config.names_of(found.name))}: {found.title}"


def _lines(found: DiscoveredBackend, heading: str) -> list[str]:
    if not found.available:
        return [f"✗ {heading}", f"    Error: {found.reason}"]
    devices = [f"    [{d.index}] {d.name}: {_memory(d)}" for d in found.devices]
    return [f"✓ {heading}", *devices, *(f"    {line}" for line in found.unusable)]


def _memory(device: DeviceInfo) -> str:
    total = f"{device.total_memory / (1 << 30):.2f} GB"
    if device.free_memory is not None:
        return f"{total} ({device.free_memory / (1 << 30):.2f} GB free)"
    return f"{total} (unified memory)" if device.unified_memory else total


def choose_backend_name(preference: BackendPreference | str, fallbacks: Sequence[str] = ()) -> str:
    """The name of the backend to use. BackendUnavailable with every reason if none runs here."""
    if isinstance(preference, BackendPreference):
        preference, fallbacks = _candidates(preference, fallbacks)
    if config.is_auto(preference):
        return registry.get_backend()
    reasons = {}
    for name in (preference, *fallbacks):
        if config.is_auto(name):
            return registry.get_backend()
        if not (reason := registry.open_backend(name).why_not):
            return registry.open_backend(name).name
        reasons[name] = reason
    if not fallbacks:
        return _require_backend(preference).name  # raises with the remedies
    tried = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
    known = ", ".join(config.known_names())
    raise BackendUnavailable(f"no backend of {', '.join(reasons)} runs here{tried}\nknown: {known}")


def _require_backend(name: str) -> registry.Backend:
    try:
        return registry.require_backend(name)
    except ImportError as error:
        raise BackendUnavailable(str(error)) from error


def _candidates(preference: BackendPreference, fallbacks: Sequence[str]) -> tuple[str, Sequence[str]]:
    forced = preference in (BackendPreference.Auto, BackendPreference.Cpu)
    return preference.value, (*fallbacks, *(() if forced else ("auto",)))
