"""What a configuration may contain: backend names, keys, and the values of each key.

`config` finds the files and decides their precedence. Standard library only.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from airllm.backends import absent, declaration
from airllm.backends.declaration import Absent, Declaration, all_declarations, shipped
from airllm.readable import escape_controls

BUILT_IN = tuple(shipped())  # in the automatic order
# The backend_priority of a configuration that keeps the automatic order.
IN_ORDER = tuple(name for name, own in shipped().items() if own.in_shipped_order)
DEFINITIONS = next(name for name, own in shipped().items() if own.definitions)  # it runs everywhere
# Backend names of other systems that are no backend here; an alias of a backend takes precedence.
_OTHERS = {name: each for own in shipped().values() for name, each in own.stands_for.items()} | absent.ABSENT
_NAMES: tuple[tuple[str, Absent | Declaration], ...] = (*_OTHERS.items(), *shipped().items())
ALIASES = {alias: name for name, each in _NAMES for alias in each.aliases}
AUTO = "auto"
# Names that are no backend, and why.
ABSENT = {name: each.reason for name, each in _OTHERS.items() if name not in ALIASES}
DEFAULTS: dict[str, Any] = {
    "preferred_backend": AUTO,
    "backend_priority": list(IN_ORDER),
    "force_backend": None,
}
KEYS = tuple(DEFAULTS)


class ConfigError(ValueError):
    """An invalid configuration; the message names file, line and key, on one line."""

    __module__ = "airllm.backends.config"  # users import it from there

    def __init__(self, message: str):
        super().__init__(escape_controls(message))


class Wrong(ValueError):
    """What is wrong with a value, before its file and line are known; `item` is the wrong part."""

    def __init__(self, item: Any, message: str):
        super().__init__(message)
        self.item = item


def is_of_a_setting(name: str, error: Exception) -> bool:
    """Whether a backend's import failed because of one of its settings; its error begins with the name."""
    return isinstance(error, ImportError) and str(error).startswith(all_declarations()[name].settings)


# ---- names ----


def known_names() -> tuple[str, ...]:
    """All backends: those of the automatic order, then others of installed distributions."""
    return tuple(all_declarations())


def absent_names() -> dict[str, str]:
    """The names of ABSENT that no installed backend has, with the reasons."""
    return {name: why for name, why in ABSENT.items() if name not in all_declarations()}


def label(name: str) -> tuple[str, str]:
    """A backend's title and hardware in summaries."""
    if name in all_declarations():
        return all_declarations()[name].title or name, all_declarations()[name].runs_on
    return _OTHERS[name].title, _OTHERS[name].runs_on


def on_processor() -> tuple[str, ...]:
    """The backends that compute in host memory, in the automatic order."""
    return tuple(name for name, own in all_declarations().items() if own.on_processor)


def processor_module() -> str:
    """The module whose kernels are multithreaded on the CPU; "" if no backend has one."""
    return next((own.module for own in all_declarations().values() if own.threads), "")


def expand_order(order: tuple[str, ...]) -> tuple[str, ...]:
    """Expand the shipped order to all backends with a rank; return any other order unchanged."""
    if order != IN_ORDER:
        return order
    return tuple(name for name, own in all_declarations().items() if own.rank is not None)


def is_auto(name: Any) -> bool:
    """Whether `name` is "auto", the word for the automatic choice."""
    return isinstance(name, str) and name.lower() == AUTO


def canonical_name(name: str) -> str:
    """The canonical name of a backend, from its name or an alias in any case; otherwise ConfigError that
    lists the known names.
    """
    folded = str(name).lower()
    folded = ALIASES.get(folded, folded)
    if folded in BUILT_IN:
        return folded
    for (
        known,
        own,
    ) in all_declarations().items():  # names of other distributions may have any case
        if folded in (each.lower() for each in (known, *own.aliases)):
            return known
    if folded in ABSENT:
        return folded
    raise ConfigError(f"unknown backend {name!r}, expected {_names()}")


def aliases() -> dict[str, str]:
    """Aliases of backends and of ABSENT names, with the names they stand for."""
    return {**{alias: name for name, own in all_declarations().items() for alias in own.aliases}, **ALIASES}


def names_of(backend: str) -> list[str]:
    """All names of a backend, its own first."""
    return [backend, *(alias for alias, own in aliases().items() if own == backend)]


def _names(*others: str) -> str:
    found = ", ".join(f"{alias} = {name}" for alias, name in aliases().items() if name in all_declarations())
    return f"one of: {', '.join([*others, *known_names()])} ({found})"


# ---- values ----


def _check_name(value: Any, *others: str) -> str:
    if not isinstance(value, str):
        raise Wrong(value, f"has {format_value(value)}, expected {_names(*others)}")
    try:
        return canonical_name(value)
    except ConfigError:
        raise Wrong(value, f"has the unknown backend {value!r}, expected {_names(*others)}") from None


def _check_preferred(value: Any) -> str:
    return AUTO if is_auto(value) else _check_name(value, AUTO)


def _check_force(value: Any) -> str | None:
    return None if value is None else _check_name(value, "null")


def _check_priority(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Wrong(value, f"has {format_value(value)}, expected a list of backends")
    if not value:
        raise Wrong(value, "is empty, expected at least one backend")
    names: list[str] = []
    for item in value:
        if _check_name(item) in names:
            raise Wrong(item, f"has {item!r} twice, expected each backend once")
        names.append(_check_name(item))
    return tuple(names)


def device(value: Any) -> str:
    """An index, "platform:device" or a part of a name, as text; it is not checked against the devices."""
    text = str(value).strip() if type(value) in (int, str) else ""
    if not text or text.startswith("-"):
        expected = 'a device\'s index, "platform:device" or a part of its name'
        raise Wrong(value, f"has {format_value(value)}, expected {expected}")
    return text


def preference(text: str) -> str:
    """The name of a backend, or auto; otherwise ConfigError that lists the known names."""
    return _check_value(_check_preferred, text)


def order(text: str) -> tuple[str, ...]:
    """The backends of a comma-separated list; ConfigError for an unknown or repeated one."""
    return _check_value(_check_priority, [name.strip() for name in text.split(",")])


def _check_value(check: Callable[[Any], Any], value: Any) -> Any:
    """`check(value)` for a value that is not from a file."""
    try:
        return check(value)
    except Wrong as wrong:
        raise ConfigError(str(wrong)) from None


CHECKS: dict[str, Callable[[Any], Any]] = {
    "preferred_backend": _check_preferred,
    "backend_priority": _check_priority,
    "force_backend": _check_force,
}


def checks(keys: Mapping[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """The check for each key that a file may have: those of CHECKS, and those that backends declare.

    Searches installed distributions only if none of these has one of `keys`.
    """
    own = {**CHECKS, **_keys_of(shipped())}
    return own if keys.keys() <= own.keys() else {**_keys_of(all_declarations()), **own}


def _keys_of(backends: Mapping[str, declaration.Declaration]) -> dict[str, Callable[[Any], Any]]:
    found = {key: check for own in backends.values() for key, check in own.keys.items()}
    return {key: declaration.function(check) for key, check in found.items()}


def format_value(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", type(None): "null", bool: "a boolean"}
    return kinds.get(type(value)) or f"{json.dumps(value)} (a {'string' if type(value) is str else 'number'})"
