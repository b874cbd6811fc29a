"""What a configuration may say: the names of backends, the keys, and what each key may have.

Where a configuration stands, and which one counts, is in `config`. Standard library only.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from airllm.backends import absent, declaration
from airllm.backends.declaration import Absent, Declaration, all_declarations, shipped

BUILT_IN = tuple(shipped())  # as the automatic order tries them
# What a configuration says that leaves it at that.
IN_ORDER = tuple(name for name, own in shipped().items() if own.in_shipped_order)
DEFINITIONS = next(name for name, own in shipped().items() if own.definitions)  # it runs everywhere
# Names that other systems know, which are no backend of this one; where it is an alias, that goes first.
_OTHERS = {name: each for own in shipped().values() for name, each in own.stands_for.items()} | absent.ABSENT
_NAMES: tuple[tuple[str, Absent | Declaration], ...] = (*_OTHERS.items(), *shipped().items())
ALIASES = {alias: name for name, each in _NAMES for alias in each.aliases}
AUTO = "auto"
# Those that are none, and why.
ABSENT = {name: each.reason for name, each in _OTHERS.items() if name not in ALIASES}
DEFAULTS: dict[str, Any] = {
    "preferred_backend": AUTO,
    "backend_priority": list(IN_ORDER),
    "force_backend": None,
}
KEYS = tuple(DEFAULTS)


class ConfigError(ValueError):
    """A configuration that says something it cannot mean; the message names file, line and key."""

    __module__ = "airllm.backends.config"  # where users find it


class Wrong(ValueError):
    """What is wrong with a value, before it is known where the value stands; `item` is the part at fault."""

    def __init__(self, item: Any, message: str):
        super().__init__(message)
        self.item = item


def is_of_a_setting(name: str, error: Exception) -> bool:
    """Whether a backend's import says that one of its settings cannot be; it names that first."""
    return isinstance(error, ImportError) and str(error).startswith(all_declarations()[name].settings)


# ---- names ----


def known_names() -> tuple[str, ...]:
    """Every backend: those of the automatic order, then others that installed distributions add."""
    return tuple(all_declarations())


def absent_names() -> dict[str, str]:
    """Names of ABSENT that no backend has, and why."""
    return {name: why for name, why in ABSENT.items() if name not in all_declarations()}


def label(name: str) -> tuple[str, str]:
    """What a backend is called in a summary, and what it runs on."""
    if name in all_declarations():
        return all_declarations()[name].title or name, all_declarations()[name].runs_on
    return _OTHERS[name].title, _OTHERS[name].runs_on


def on_processor() -> tuple[str, ...]:
    """The backends that compute in the host's memory, in the automatic order."""
    return tuple(name for name, own in all_declarations().items() if own.on_processor)


def processor_module() -> str:
    """The name of the module whose kernels share the processor among threads, "" if no backend has one."""
    return next((own.module for own in all_declarations().values() if own.threads), "")


def expand_order(order: tuple[str, ...]) -> tuple[str, ...]:
    """The shipped order stands for that of all backends that have a rank; any other is what it says."""
    if order != IN_ORDER:
        return order
    return tuple(name for name, own in all_declarations().items() if own.rank is not None)


def is_auto(name: Any) -> bool:
    """Whether it is the word for the automatic choice."""
    return isinstance(name, str) and name.lower() == AUTO


def canonical_name(name: str) -> str:
    """The backend's own name for it or one of ALIASES, in letters of any case; ConfigError that lists the
    known ones otherwise.
    """
    folded = str(name).lower()
    folded = ALIASES.get(folded, folded)
    if folded in BUILT_IN:
        return folded
    for (
        known,
        own,
    ) in all_declarations().items():  # of which other distributions may write theirs as they like
        if folded in (each.lower() for each in (known, *own.aliases)):
            return known
    if folded in ABSENT:
        return folded
    raise ConfigError(f"unknown backend {name!r}, expected {_names()}")


def aliases() -> dict[str, str]:
    """Other names of backends, and of what is ABSENT, and whose they are."""
    return {**{alias: name for name, own in all_declarations().items() for alias in own.aliases}, **ALIASES}


def names_of(backend: str) -> list[str]:
    """What a backend may be called: its own name, then others."""
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
    """An index, "platform:device" or a part of a name, as text: which devices there are is not known here."""
    text = str(value).strip() if type(value) in (int, str) else ""
    if not text or text.startswith("-"):
        expected = 'a device\'s index, "platform:device" or a part of its name'
        raise Wrong(value, f"has {format_value(value)}, expected {expected}")
    return text


def preference(text: str) -> str:
    """A backend's name or auto; ConfigError that lists the known ones otherwise."""
    return _check_value(_check_preferred, text)


def order(text: str) -> tuple[str, ...]:
    """The backends of a comma-separated list; ConfigError for one that is unknown or there twice."""
    return _check_value(_check_priority, [name.strip() for name in text.split(",")])


def _check_value(check: Callable[[Any], Any], value: Any) -> Any:
    """`check(value)` of something that stands in no file."""
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
    """Of each key that a file may have, what checks it: of CHECKS, and those that backends declare.

    Installed distributions are only asked where one of `keys` is of nobody else.
    """
    own = {**CHECKS, **_keys_of(shipped())}
    return own if keys.keys() <= own.keys() else {**_keys_of(all_declarations()), **own}


def _keys_of(backends: Mapping[str, declaration.Declaration]) -> dict[str, Callable[[Any], Any]]:
    found = {key: check for own in backends.values() for key, check in own.keys.items()}
    return {key: declaration.function(check) for key, check in found.items()}


def format_value(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", type(None): "null", bool: "a boolean"}
    return kinds.get(type(value)) or f"{json.dumps(value)} (a {'string' if type(value) is str else 'number'})"
