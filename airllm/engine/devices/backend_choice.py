"""Chooses the backend that an engine runs a model on.

A named backend is kept. If the automatic order begins with a device, the device may still be slower for a
model. So this module compares what a token takes on each device of the order and on the processor, and takes
the fastest. Of a device that keeps models, it predicts that from the device's bandwidth and the cost of its
launches (`device_speed.py`); elsewhere it times some layers. It keeps the result in the cache folder. If the
order begins with `cpp` or `python`, it measures nothing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

from airllm.architectures import config_of, open_config
from airllm.backends import (
    config_schema,
    json_file,
    registry,
    tuning_file,
)
from airllm.backends.api.kernel_backend import KernelBackend, init_backend
from airllm.engine import speed
from airllm.engine.devices.device_speed import predict_speed
from airllm.engine.exact_ops import ExactOps
from airllm.engine.model import Model
from airllm.engine.speed import Speed
from airllm.files import smollm2
from airllm.files.open_weights import open_weights
from airllm.formats import Quantized
from airllm.memory.device_plan import DeviceOptions

LONGEST = 3.0  # seconds: after devices have taken this long, no other device is tried
KEPT = 100  # most models with a kept result


@dataclass(frozen=True)
class EngineBackend:
    """The `name` of the backend for a model, `why` it was chosen, and the measured speeds."""

    name: str
    why: str
    speeds: Mapping[str, Speed] = field(default_factory=dict)


@dataclass(frozen=True)
class Opening:
    """The settings of an engine that affect a model's speed."""

    path: str | PathLike[str]
    exact: bool = False
    max_memory: int | None = None
    context: int | None = None
    cache_dtype: str = "f16"
    device: DeviceOptions = DeviceOptions()
    fallback_backends: tuple[str, ...] = ()

    def ops(self, backend: KernelBackend) -> Any:
        """The ops of a backend, as the engine uses them."""
        return ExactOps(backend) if self.exact else backend

    def model(self, backend: KernelBackend) -> Model:
        """Open the model on these ops."""
        given = (self.max_memory, self.context, self.cache_dtype)
        return Model(self.path, self.ops(backend), *given, None, self.device, self.fallback_backends)

    def predict(self, name: str, host: Speed) -> Speed | None:
        """The model's speed on a device that would keep it; None if it has to be measured: an encoder's."""
        if self.exact or self.max_memory is not None or open_config(self.path).encoding:
            return None
        return predict_speed(self.path, name, self.context, self.cache_dtype, self.device, host)

    def speed(self, name: str, best: float = 0.0) -> Speed:
        """The model's speed on a backend: see `speed.measure_speed` and `measure_encoder`."""
        with closing(self.model(KernelBackend(name))) as model:
            if model.config.encoding:
                return speed.measure_encoder(model)
            return speed.measure_speed(model, self.cache_dtype, best)


def choose_backend(
    opening: Opening, backend: str = "auto", fallback_backends: Sequence[str] = ()
) -> EngineBackend:
    """The backend for a model: `backend` if that is a name, or the first of `fallback_backends`, which must
    run here; else the configured name; else the fastest of the order.
    """
    now = registry.choice()
    if backend != "auto" or now.named:
        why = "asked for by name" if backend != "auto" else now.why
        return EngineBackend(init_backend(backend, fallback_backends).name(), why)
    if now.backend.name in config_schema.on_processor():
        return EngineBackend(now.backend.name, "the first that runs in the order; no device comes before it")
    host, devices = _host(now), [name for name in _before_host(now) if name not in now.passed_over]
    speeds, when = speeds_of(opening, devices, host)
    return EngineBackend(speed.fastest(speeds), f"the fastest, {when}", speeds)


def beside_processor(opening: Opening, name: str) -> dict[str, Speed]:
    """Speeds of the backend `name` and of the processor; empty if `name` is not a device."""
    if name in config_schema.on_processor():
        return {}
    return speeds_of(opening, [name], _host(registry.choice()))[0]


def _host(now: Any) -> str:
    """The first backend of the order that computes on the processor."""
    order = [name for name in _order(now) if name in config_schema.on_processor()]
    return next(name for name in order if not registry.open_backend(name).why_not)


def _before_host(now: Any) -> list[str]:
    return _order(now)[: _order(now).index(_host(now))]


def _order(now: Any) -> list[str]:
    return [*now.config.order, *config_schema.on_processor()]


# ---- measured ----


def speeds_of(opening: Opening, devices: Sequence[str], host: str) -> tuple[dict[str, Speed], str]:
    """The speeds on `host` and on the devices, and a text that says when they were measured."""
    file, key = cache_file(), _key(opening, devices, host)
    kept = _read(file)
    with suppress(KeyError, TypeError, ValueError):  # no result kept, or one of another version
        found = {name: Speed(**each) for name, each in kept[key]["speeds"].items()}
        if not registry.open_backend(speed.fastest(found)).why_not:
            return found, f"measured {kept[key]['measured']}, kept in {file}"
    found = _measure_speeds(opening, devices, host)
    record = {
        "model": str(opening.path),
        "measured": time.strftime("%Y-%m-%d %H:%M %z"),
        "speeds": {name: asdict(each) for name, each in found.items()},
    }
    kept.pop(key, None)
    why_not_kept = _write(file, dict([*kept.items(), (key, record)][-KEPT:]))
    return found, f"measured now, {why_not_kept or f'kept in {file}'}"


def _measure_speeds(opening: Opening, devices: Sequence[str], host: str) -> dict[str, Speed]:
    found = {host: opening.speed(host)}
    started = speed.clock()
    for name in devices:
        if (taken := speed.clock() - started) > LONGEST:
            found[name] = Speed(0, why_not=f"not tried, the devices before it took {taken:.0f} s")
        else:
            best = max(each.tokens_per_second for each in found.values())
            found[name] = _try_device(opening, name, found[host], best)
    return found


def _try_device(opening: Opening, name: str, host: Speed, best: float) -> Speed:
    """The speed on a device, or the reason why the model does not run there."""
    if name != registry.get_backend() and (reason := registry.why_passed_over(name)):
        return Speed(0, why_not=reason)
    try:
        return opening.predict(name, host) or opening.speed(name, best)
    except Exception as error:  # a driver may raise anything
        return Speed(0, why_not=f"cannot run this model: {registry.reason_of(name, error)}")


# ---- kept ----


def cache_file() -> Path:
    """The file with the measured speeds."""
    return smollm2.cache_dir() / "model_speeds.json"


def forget() -> None:
    """Delete all measured speeds, so that each model is measured again when it is opened next."""
    with suppress(FileNotFoundError, NotADirectoryError):  # then nothing was kept
        cache_file().unlink()


def _key(opening: Opening, devices: Sequence[str], host: str) -> str:
    """A hash of what the speeds depend on, as far as it is known without starting a device not in use."""
    names = (registry.get_backend(), host)
    machine = tuning_file.this_machine({name: registry.open_backend(name).device for name in names})
    budget = (opening.max_memory, opening.context) if opening.max_memory is not None else None
    known = (
        vars(machine),
        [(name, _version(name)) for name in devices],
        _shape(opening.path),
        (opening.exact, opening.cache_dtype, budget, opening.device),
    )
    return hashlib.sha256(repr(known).encode()).hexdigest()[:32]


def _version(name: str) -> str:
    """Versions of a backend's packages, which affect its speed. One without packages is part of airllm."""
    found = []
    for package in config_schema.all_declarations()[name].packages:
        with suppress(metadata.PackageNotFoundError):
            found.append(metadata.version(package))
    return ", ".join(found)


def _shape(path: str | PathLike[str]) -> tuple[str, list[tuple[str, Any]]]:
    """A model's configuration, and the formats and shapes of its tensors."""
    with open_weights(path) as weights:
        tensors = [weights.tensor(name) for name in weights.names()]
        kinds = [(t.format if isinstance(t, Quantized) else str(t.dtype), t.shape) for t in tensors]
        return repr(config_of(weights)), sorted(set(kinds))


def _read(file: Path) -> dict[str, Any]:
    """The kept speeds; none if the file cannot be read, since all of them can be measured again."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _write(file: Path, kept: Mapping[str, Any]) -> str:
    """Keep these speeds; returns "" or the reason why they cannot be kept."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write(file, json_file.text_of(dict(kept)))
    except (OSError, config_schema.ConfigError) as error:
        return f"and at the next time again: {error}"
    return ""
