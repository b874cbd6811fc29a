"""tuning.json: the times of ops on each backend of this machine, as `airllm tune` measured them.

It is next to the configuration in force, else in the checkout or the user's configuration folder.
AIRLLM_TUNING names another file, or is `off`. BACKEND_CONFIG.md explains the file; `routing` uses it.
An invalid file raises an error with file, line and key. Standard library only.
"""

import contextlib
import functools
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airllm import __version__
from airllm.backends import config, json_file
from airllm.backends.config_schema import ConfigError, format_value
from airllm.backends.device_cost import DeviceCost
from airllm.backends.devices import cpu_name

_LARGEST = sys.maxsize  # limit on the number of elements of an array
DTYPES = ("float32", "float16", "bfloat16")
KEYS = ("about", "measured", "machine", "ops", "devices")
ABOUT = "how long ops take on each backend of this machine, in us (median, quartiles): airllm tune"
REMEDY = "`airllm tune` measures again and rewrites the file"


@dataclass(frozen=True)
class Time:
    """The time of a call in microseconds, including copies to and from a device: median and quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """The measurement of one size: the shape of each array, and the time on each backend."""

    arrays: Mapping[str, tuple[int, ...]]
    times: Mapping[str, Time]


@dataclass(frozen=True)
class Machine:
    """The machine that the times are valid for; `backends` has the device of each measured backend."""

    cpu: str
    cores: int
    airllm: str
    backends: Mapping[str, str]

    def changes(self, devices: Mapping[str, str]) -> list[str]:
        """One line for each difference to this machine. `devices` has the backends to compare, each with its
        device, "" if it does not run.
        """
        here = this_machine({})
        pairs = [(name, getattr(self, name), getattr(here, name)) for name in ("cpu", "cores", "airllm")]
        pairs += [(name, self.backends.get(name, ""), device) for name, device in devices.items()]
        return [
            f"{name}: {_or_none(now)}, measured: {_or_none(then)}" for name, then, now in pairs if now != then
        ]


def _or_none(value: Any) -> str:
    return str(value) or "none"


@dataclass(frozen=True, eq=False)
class Tuning:
    """The content of a file; `ops` has the points of each op by dtype, `devices` the costs of the devices
    that keep models, by backend.
    """

    path: Path
    measured: str
    machine: Machine
    ops: Mapping[str, Mapping[str, tuple[Point, ...]]]
    devices: Mapping[str, DeviceCost] = field(default_factory=dict)


@functools.cache
def _host() -> tuple[str, int]:
    return cpu_name(), os.cpu_count() or 1


def this_machine(devices: Mapping[str, str]) -> Machine:
    """This machine, with these backends and their devices."""
    return Machine(*_host(), __version__, devices)


# ---- the file ----


def tuning_file() -> Path | None:
    """The path of the file, which may not exist yet; None if there is no path: see `why_no_file`."""
    named = os.environ.get("AIRLLM_TUNING", "").strip()
    if named:
        return None if named == "off" else config.named_file("AIRLLM_TUNING", named)
    _, path = config.effective_file()
    beside = path or config.checkout_file() or config.user_file()
    return beside.with_name("tuning.json") if beside else None


def why_no_file() -> str:
    """Why `tuning_file` returned None."""
    if os.environ.get("AIRLLM_TUNING", "").strip() == "off":
        return "AIRLLM_TUNING=off"
    return "this user has no home folder, and AIRLLM_TUNING names no file"


@contextlib.contextmanager
def ignore_tuning() -> Iterator[None]:
    """Ignore the tuning file inside the block."""
    before = os.environ.get("AIRLLM_TUNING")
    os.environ["AIRLLM_TUNING"] = "off"
    try:
        yield
    finally:
        del os.environ["AIRLLM_TUNING"]
        os.environ.update({} if before is None else {"AIRLLM_TUNING": before})


def load() -> Tuning | None:
    """The tuning in force, None if there is none; ConfigError for an invalid file."""
    path = tuning_file()
    if path and path.exists():
        stamp = path.stat()
        return _read(path, stamp.st_mtime_ns, stamp.st_size)
    if path and os.environ.get("AIRLLM_TUNING"):
        raise ConfigError(f"AIRLLM_TUNING={path}: there is no such file: {REMEDY}")
    return None


@functools.lru_cache(4)
def _read(path: Path, *stamp: int) -> Tuning:
    return read(path)


def read(path: Path) -> Tuning:
    """The content of one file; ConfigError with file, line and key if it is invalid."""
    try:
        values, text = json_file.read(path, f"the keys {', '.join(KEYS)}")
        return _Reader(path, text).tuning(values)
    except ConfigError as error:
        raise ConfigError(f"{error} ({REMEDY})") from None


def write(
    path: Path,
    machine: Machine,
    measured: str,
    ops: Mapping[str, Any],
    devices: Mapping[str, DeviceCost] | None = None,
) -> Tuning:
    """Write points of ops, and costs of devices, to a file, which may not exist yet. Returns its whole
    content.

    Others are kept if they were measured on the same machine; keys that are not airllm's are kept.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    others: dict[str, Any] = {}
    with json_file.one_writer(path):
        with contextlib.suppress(ConfigError, FileNotFoundError):
            old = read(path)
            values = json.loads(path.read_text("utf-8-sig"))
            others = {key: value for key, value in values.items() if key not in KEYS}
            if old.machine == machine:
                ops, devices = {**old.ops, **ops}, {**old.devices, **(devices or {})}
        json_file.write(
            path, _lay_out({**_values(machine, measured, ops, devices or {}), **others}, 4) + "\n"
        )
    return read(path)


def _values(
    machine: Machine, measured: str, ops: Mapping[str, Any], devices: Mapping[str, DeviceCost]
) -> dict[str, Any]:
    return {
        "about": ABOUT,
        "measured": measured,
        "machine": {**vars(machine), "backends": dict(machine.backends)},
        "ops": {
            op: {dtype: [_point(point) for point in points] for dtype, points in dtypes.items()}
            for op, dtypes in ops.items()
        },
        "devices": {name: _rounded(asdict(cost)) for name, cost in devices.items()},
    }


def _rounded(value: Any) -> Any:
    """The value with numbers of four figures."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _point(point: Point) -> dict[str, Any]:
    times = {
        name: [float(f"{figure:.4g}") for figure in (time.median, time.low, time.high)]
        for name, time in point.times.items()
    }
    return {"arrays": {name: list(shape) for name, shape in point.arrays.items()}, "us": times}


def _lay_out(value: Any, levels: int, indent: str = "\n") -> str:
    """JSON with one line per value in the outer `levels`, and each inner value on one line."""
    if not levels or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + " "
    if isinstance(value, list):
        return "[" + ",".join(inner + _lay_out(each, levels - 1, inner) for each in value) + indent + "]"
    members = (f"{json.dumps(key)}: {_lay_out(each, levels - 1, inner)}" for key, each in value.items())
    return "{" + ",".join(inner + member for member in members) + indent + "}"


# ---- validation ----


class _Reader:
    """Check the content of a file and convert it to the types above."""

    def __init__(self, path: Path, text: str):
        self.path, self.text = path, text

    def refuse(self, keys: tuple[str | int, ...], says: str) -> ConfigError:
        line = json_file.line_of(self.text, *keys)
        name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
        return ConfigError(f"{self.path}:{line}: {name} {says}")

    def get(self, value: Any, key: str, kind: type, keys: tuple[str | int, ...] = ()) -> Any:
        if key not in value:
            raise self.refuse((*keys, key), "is missing")
        return self.of(value[key], kind, (*keys, key))

    def of(self, value: Any, kind: type, keys: tuple[str | int, ...]) -> Any:
        if type(value) is not kind:
            kinds = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}
            raise self.refuse(keys, f"has {format_value(value)}, expected {kinds[kind]}")
        return value

    def tuning(self, values: dict[str, Any]) -> Tuning:
        machine = self.machine(self.get(values, "machine", dict))
        ops = {
            op: self.op(self.of(dtypes, dict, ("ops", op)), machine, op)
            for op, dtypes in self.get(values, "ops", dict).items()
        }
        devices = {
            name: self.device(self.of(cost, dict, ("devices", name)), ("devices", name))
            for name, cost in self.of(values.get("devices", {}), dict, ("devices",)).items()
        }
        return Tuning(self.path, self.get(values, "measured", str), machine, ops, devices)

    def device(self, values: dict[str, Any], keys: tuple[str | int, ...]) -> DeviceCost:
        label, read = self.get(values, "device", str, keys), self.get(values, "read", dict, keys)
        numbers = {name: self.number(values, name, keys) for name in ("launch", "wait", "upload")}
        rates = {kind: self.number(read, kind, (*keys, "read")) for kind in read}
        return DeviceCost(label, **numbers, read=rates)

    def number(self, values: dict[str, Any], key: str, keys: tuple[str | int, ...]) -> float:
        found: Any = values.get(key)
        if type(found) not in (int, float) or not 0 < found <= sys.float_info.max:
            raise self.refuse((*keys, key), f"has {format_value(found)}, expected a number above 0")
        return float(found)

    def machine(self, values: dict[str, Any]) -> Machine:
        kinds = {"cpu": str, "cores": int, "airllm": str, "backends": dict}
        found = {key: self.get(values, key, kind, ("machine",)) for key, kind in kinds.items()}
        for name, device in found["backends"].items():
            self.of(device, str, ("machine", "backends", name))
        return Machine(**found)

    def op(self, dtypes: dict[str, Any], machine: Machine, op: str) -> dict[str, tuple[Point, ...]]:
        found = {}
        for dtype, points in dtypes.items():
            keys: tuple[str | int, ...] = ("ops", op, dtype)
            if dtype not in DTYPES:
                raise self.refuse(keys, f"is an unknown dtype, expected one of: {', '.join(DTYPES)}")
            if not self.of(points, list, keys):
                raise self.refuse(keys, "is empty, expected what was measured at one size at least")
            found[dtype] = tuple(self.point(p, machine, (*keys, i)) for i, p in enumerate(points))
        self.refuse_other_arrays(op, found)
        return found

    def refuse_other_arrays(self, op: str, dtypes: Mapping[str, Sequence[Point]]) -> None:
        """Require an op to have the same arrays at all sizes."""
        names = next((list(points[0].arrays) for points in dtypes.values()), [])
        for dtype, points in dtypes.items():
            for i, point in enumerate(points):
                if list(point.arrays) != names:
                    says = f"has {', '.join(point.arrays)}, expected {', '.join(names)}, as before"
                    raise self.refuse(("ops", op, dtype, i, "arrays"), says)

    def point(self, value: Any, machine: Machine, keys: tuple[str | int, ...]) -> Point:
        self.of(value, dict, keys)
        arrays = {
            name: self.shape(shape, (*keys, "arrays", name))
            for name, shape in self.get(value, "arrays", dict, keys).items()
        }
        times = {}
        for name, figures in self.get(value, "us", dict, keys).items():
            if name not in machine.backends:
                expected = f"one of machine.backends: {', '.join(machine.backends)}"
                raise self.refuse((*keys, "us", name), f"is an unknown backend, expected {expected}")
            times[name] = self.time(figures, (*keys, "us", name))
        if not arrays or not times:
            raise self.refuse(keys, "has no arrays or no times, expected one of each at least")
        return Point(arrays, times)

    def shape(self, value: Any, keys: tuple[str | int, ...]) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
            raise self.refuse(keys, f"has {format_value(value)}, expected a shape: a list of whole numbers")
        if math.prod(value) > _LARGEST:
            raise self.refuse(
                keys, f"is a shape of more values than an array has, expected at most {_LARGEST}"
            )
        return tuple(value)

    def time(self, value: Any, keys: tuple[str | int, ...]) -> Time:
        good = isinstance(value, list) and len(value) == 3
        if not good or not all(type(n) in (int, float) and 0 < n <= sys.float_info.max for n in value):
            raise self.refuse(
                keys, f"has {format_value(value)}, expected three times above 0: median, quartiles"
            )
        return Time(*value)
